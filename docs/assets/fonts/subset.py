"""The font of the equations: the part of Latin Modern Math that they need, under another name, as its licence asks.

    pip install fonttools brotli
    python docs/assets/fonts/subset.py latinmodern-math.otf docs/assets/fonts/rlzoo-math.woff2

Latin Modern Math 1.959 is by B. Jackowski, P. Strzelczyk and P. Pianowski (on behalf of TeX users groups),
https://www.gust.org.pl/projects/e-foundry/lm-math, under the GUST Font License, which is beside this file. The outlines
and the table of mathematical constants are unchanged.
"""

import sys

from fontTools import subset

NAME = "RlzooMath"
RANGES = [
    (0x20, 0x7F),  # ASCII
    (0x391, 0x3CA),  # Greek
    (0x1D400, 0x1D468),  # bold and italic
    (0x1D49C, 0x1D4B6),  # script capitals
    (0x1D538, 0x1D56C),  # double-struck
    (0x1D6E2, 0x1D71C),  # italic Greek
    (0x2061, 0x2065),  # invisible operators
]
SIGNS = (
    "¬±·×¯ˆ˜ϵϑϕϖϱ‐–—‖‘’…′″‾ℂℎℒℓℕℝℤℬℰℱ←→↔↦⇐⇒⇔∀∂∃∅∇∈∉∏∑−∓∕∗∘√∝∞∣∥∫∼≈≠≡≤≥≪≫⊂⊆⊗⊤⊥⋅⋯⌈⌉⌊⌋⟨⟩◦\u0302\u0303\u0304\u0305\u0307"
)


def main(source: str, target: str) -> None:
    options = subset.Options(flavor="woff2", layout_features=["*"], name_IDs=["*"], notdef_outline=True)
    font = subset.load_font(source, options)
    subsetter = subset.Subsetter(options)
    subsetter.populate(unicodes=[code for first, end in RANGES for code in range(first, end)] + [ord(x) for x in SIGNS])
    subsetter.subset(font)
    for record in font["name"].names:
        if record.nameID in (1, 3, 4, 6, 16):  # family, identifier, full name, PostScript name, typographic family
            record.string = NAME
    outlines = font["CFF "].cff
    outlines.fontNames = [NAME]
    outlines.topDictIndex[0].FullName = outlines.topDictIndex[0].FamilyName = NAME
    font.flavor = "woff2"
    font.save(target)


if __name__ == "__main__":
    main(*sys.argv[1:])
