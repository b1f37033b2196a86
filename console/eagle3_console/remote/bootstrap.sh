# Sent on standard input to /bin/sh: finds a Python and the agent's folder, then becomes the agent
# (or the unpacker that becomes it).  The words between at-signs are filled in by deploy.py.
# One compound command, so that nothing runs before all of it has arrived.
{
say() { printf 'EAGLE3-%s %s\n' '@NONCE@' "$1"; }
say shell

try() { # try PYTHON: sets py when it is new enough
  test -n "$py" && return 0
  found=$(command -v "$1" 2>/dev/null </dev/null) || return 0
  test -x "$found" || return 0
  case " $seen " in *" $found "*) return 0 ;; esac
  seen="$seen $found"
  version=$("$found" -E -s -c '
import sys
print("EAGLE3 %d.%d.%d" % sys.version_info[:3])
import ctypes, hashlib, json, socket, subprocess, zlib' 2>/dev/null </dev/null)
  status=$?
  version=${version##*EAGLE3 }
  case $version in
    3.1[0-9].*|3.[2-9][0-9].*)
      if test "$status" -eq 0; then py=$found; else say "broken=$version $found"; fi ;;
    [0-9]*.[0-9]*) say "old=$version $found" ;;
    *) say "broken=? $found" ;;
  esac
}

place() { # sets cache, the folder that paths.cache_dir() of the agent names
  if test -n "$EAGLE3_HOME"; then cache=$EAGLE3_HOME/cache
  else case $XDG_CACHE_HOME in
    /*) cache=$XDG_CACHE_HOME/eagle3 ;;
    *) cache=$HOME/.cache/eagle3 ;;
  esac; fi
}

py= seen=
first=@FIRST@
test -n "$first" && try "$first"
for name in python3 python3.13 python3.12 python3.11 python3.10 python3.14 \
  /usr/bin/python3 /usr/local/bin/python3 "$HOME/.local/bin/python3" \
  /opt/conda/bin/python3 "$HOME/miniconda3/bin/python3" "$HOME/.venv/bin/python3"
do try "$name"; done
place
if test -z "$py" && test -f "$cache/agent.python" && test -O "$cache/agent.python"; then
  # a profile named it when the agent was put here; not every command knows a profile
  IFS= read -r kept <"$cache/agent.python"
  test -n "$kept" && try "$kept"
fi
if test -z "$py"; then say no-python; exit 3; fi
say "python=$version $py"

if test -z "$HOME"; then
  HOME=$("$py" -E -s -c 'import os; print(os.path.expanduser("~"))' </dev/null)
  place
fi
dir=$cache/agent/@ARCHIVE@
say "folder=$dir"

case '@MODE@' in
  attach)
    if test -f "$dir/ARCHIVE"; then
      # where EAGLE3_HOME is shared, somebody else's code must not run as this user
      test -O "$dir" || { say foreign; exit 7; }
      exec "$py" -E -s "$dir" attach @HOW@
    fi
    say missing
    exit 4 ;;
  *) exec "$py" -E -s -c @UNPACK@ "$dir" '@MODE@' '@NONCE@' '@ARCHIVE@' @SIZE@ @HOW@ ;;
esac
exit 5
}
