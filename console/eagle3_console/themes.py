"""The three themes: a dark one, a light one, and one of highest contrast.

A colour means one thing: accent = now, success = proven good, warning = look,
error = blocked or failed, ``ink-dim`` = context, ``ink-rail`` = the empty part
of a bar, ``ink-bar`` and ``ink-spark`` a quantity.
Every use of one stands beside a word or a symbol that says the same.
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
    error="#F0736A",
    foreground="#D6DEE6",
    background="#0F1419",
    surface="#141B22",
    panel="#1B242D",
    dark=True,
    variables={
        "ink-dim": "#7E8C99",
        "ink-rail": "#1D262E",
        "ink-bar": "#3D7EA6",
        "ink-spark": "#5F93B3",
        "ink-strong": "#FFFFFF",
        "footer-background": "#141B22",
        "footer-item-background": "#141B22",
        "footer-key-background": "#141B22",
        "footer-description-background": "#141B22",
        "footer-key-foreground": "#6CC7F0",
        "footer-description-foreground": "#A9B6C2",
        "block-cursor-background": "#24485E",
        "block-cursor-foreground": "#FFFFFF",
        "block-cursor-text-style": "none",
        "button-focus-text-style": "bold underline",
    },
)

LIGHT = Theme(
    name="eagle-light",
    primary="#1F6F9F",
    secondary="#4C6272",
    accent="#0B6AA0",
    success="#2B7A3D",
    warning="#9A6200",
    error="#B3261E",
    foreground="#1D2830",
    background="#FAFAF7",
    surface="#F0F1EE",
    panel="#E6E9E7",
    dark=False,
    variables={
        "ink-dim": "#66727C",
        "ink-rail": "#E3E8E9",
        "ink-bar": "#5A9CC4",
        "ink-spark": "#5A8FB0",
        "ink-strong": "#000000",
        "footer-background": "#EBEDEA",
        "footer-item-background": "#EBEDEA",
        "footer-key-background": "#EBEDEA",
        "footer-description-background": "#EBEDEA",
        "footer-key-foreground": "#0B6AA0",
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
    error="#FF5C5C",
    foreground="#FFFFFF",
    background="#000000",
    surface="#000000",
    panel="#101010",
    dark=True,
    variables={
        "ink-dim": "#D0D0D0",
        "ink-rail": "#4A4A4A",
        "ink-bar": "#00B8D4",
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
