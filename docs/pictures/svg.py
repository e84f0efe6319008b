"""SVG in a few words. Pictures follow the reader's theme, dark or light, with a background for where they cannot."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape

from batchchol.report.style import STYLES

# Okabe and Ito's colours, as the plots have them: blue, vermilion, green, purple, orange, sky.
COLOURS = tuple(colour for colour, *_ in STYLES[:6])
_STYLE = """
text { font: 13px system-ui, "Segoe UI", "DejaVu Sans", sans-serif; fill: #1f1f1f }
.small { font-size: 11px } .title { font-weight: 600 } .soft { fill: #595959 }
.middle { text-anchor: middle } .end { text-anchor: end }
.on { fill: #ffffff } .onlight { fill: #1f1f1f }
.paper { fill: #ffffff } .empty { fill: #f1f1f1 } .done { fill: #cfcfcf }
.frame { stroke: #8a8a8a } .mark { stroke: #1f1f1f; stroke-width: 2.5 }
@media (prefers-color-scheme: dark) {
text { fill: #ececec } .soft { fill: #b0b0b0 }
.on { fill: #ffffff } .onlight { fill: #1f1f1f }
.paper { fill: #131416 } .empty { fill: #24262a } .done { fill: #4a4d53 }
.frame { stroke: #777b82 } .mark { stroke: #ffffff }
}
""".strip()
_LIGHT = COLOURS[3:]


def on(colour: str) -> str:
    """The class of words that are to be read on a colour."""
    return "onlight" if colour in _LIGHT else "on"


@dataclass
class Drawing:
    """A picture of `width` by `height` pixels; `label` is what it shows, for those who cannot see it."""

    width: float
    height: float
    label: str
    parts: list[str] = field(default_factory=list)

    def text(self, x: float, y: float, words: str, kind: str = "") -> None:
        """Words whose baseline begins at (x, y), or has its middle there if `kind` names the class "middle"."""
        named = f' class="{kind}"' if kind else ""
        self.parts.append(f'<text x="{x:g}" y="{y:g}"{named}>{escape(words)}</text>')

    def box(
        self, x: float, y: float, width: float, height: float, fill: str, *, frame: str = "frame", shade: float = 1
    ) -> None:
        """A rectangle filled with a colour, or with a class of the style."""
        colour = fill.startswith("#")
        kinds = " ".join(kind for kind in (frame, "" if colour else fill) if kind)
        filled = f' fill="{fill}"' if colour else ""
        faint = f' fill-opacity="{shade:g}"' if shade != 1 else ""
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" class="{kinds}"{filled}{faint}/>'
        )

    def outline(self, x: float, y: float, width: float, height: float) -> None:
        """A thick frame around what is there."""
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" class="mark" fill="none"/>'
        )

    def __str__(self) -> str:
        size = f'width="{self.width:g}" height="{self.height:g}" viewBox="0 0 {self.width:g} {self.height:g}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(self.label)}">'
        paper = f'<rect width="{self.width:g}" height="{self.height:g}" rx="6" class="paper"/>'
        return "\n".join([head, f"<style>{_STYLE}</style>", paper, *self.parts, "</svg>\n"])
