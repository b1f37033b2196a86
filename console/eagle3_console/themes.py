"""The three themes: a dark one, a light one, and one of highest contrast.

A colour means one thing: accent = now, success = proven good, warning = look,
error = blocked or failed, ``ink-dim`` = context, ``ink-rail`` = the empty part
of a bar, ``ink-bar`` and ``ink-spark`` a quantity.
Every use of one stands beside a word or a symbol that says the same, so that
all of it reads without colour too (``plain``).
"""

from __future__ import annotations

from textual.theme import Theme

DARK = Theme(
    name="eagle-dark",
    primary="#6CB6E4",
    secondary="#8AA4B8",
    accent="#6CC7F0",
    success="#7CC38A",
    warning="#E5B567",
    error="#F58880",
    foreground="#D6DEE6",
    background="#0F1419",
    surface="#141B22",
    panel="#1B242D",
    dark=True,
    variables={
        "ink-dim": "#9AA7B3",
        "ink-rail": "#1D262E",
        "ink-bar": "#4A90BB",
        "ink-spark": "#6A9EBE",
        "ink-strong": "#FFFFFF",
        "footer-background": "#141B22",
        "footer-item-background": "#141B22",
        "footer-key-background": "#141B22",
        "footer-description-background": "#141B22",
        "footer-key-foreground": "#6CC7F0",
        "footer-description-foreground": "#A9B6C2",
        "block-cursor-background": "#1D3F54",
        "block-cursor-foreground": "#FFFFFF",
        "block-cursor-text-style": "none",
        "button-focus-text-style": "bold underline",
    },
)

LIGHT = Theme(
    name="eagle-light",
    primary="#1B6592",
    secondary="#4C6272",
    accent="#0A5F90",
    success="#216B33",
    warning="#855400",
    error="#AB221B",
    foreground="#1D2830",
    background="#FAFAF7",
    surface="#F0F1EE",
    panel="#E6E9E7",
    dark=False,
    variables={
        "ink-dim": "#56626B",
        "ink-rail": "#E3E8E9",
        "ink-bar": "#3B7FA8",
        "ink-spark": "#3F7799",
        "ink-strong": "#000000",
        "footer-background": "#EBEDEA",
        "footer-item-background": "#EBEDEA",
        "footer-key-background": "#EBEDEA",
        "footer-description-background": "#EBEDEA",
        "footer-key-foreground": "#0A5F90",
        "footer-description-foreground": "#45525C",
        "block-cursor-background": "#CFE4F1",
        "block-cursor-foreground": "#10202B",
        "block-cursor-text-style": "none",
        "button-focus-text-style": "bold underline",
    },
)

CONTRAST = Theme(
    name="eagle-contrast",
    primary="#FFFFFF",
    secondary="#FFFFFF",
    accent="#00E5FF",
    success="#3CFF6B",
    warning="#FFD500",
    error="#FF8A8A",
    foreground="#FFFFFF",
    background="#000000",
    surface="#000000",
    panel="#101010",
    dark=True,
    variables={
        "ink-dim": "#D0D0D0",
        "ink-rail": "#303030",
        "ink-bar": "#00C8E8",
        "ink-spark": "#00E5FF",
        "ink-strong": "#FFFFFF",
        "footer-background": "#000000",
        "footer-item-background": "#000000",
        "footer-key-background": "#000000",
        "footer-description-background": "#000000",
        "footer-key-foreground": "#FFD500",
        "footer-description-foreground": "#FFFFFF",
        "block-cursor-background": "#FFD500",
        "block-cursor-foreground": "#000000",
        "block-cursor-text-style": "bold",
        "button-focus-text-style": "bold underline",
    },
)

THEMES = (DARK, LIGHT, CONTRAST)

_WORDS = {DARK.name: "dark", LIGHT.name: "light", CONTRAST.name: "high contrast"}


def words(name: str) -> str:
    """A theme's name as a person reads it."""
    return _WORDS.get(name, name)


def named(name: str) -> Theme:
    """The theme of this name; the dark one when it is no name of one."""
    return next((theme for theme in THEMES if theme.name == name), DARK)


def following(name: str) -> Theme:
    """The theme after this one, in a circle."""
    return THEMES[(THEMES.index(named(name)) + 1) % len(THEMES)]
