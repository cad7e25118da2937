"""Text in several scripts, for tests of tokenizers."""

from __future__ import annotations

TEXTS: dict[str, str] = {
    "english": "The octavo's first page was printed in 1501; it didn't cost much (3.50 ducats). \"Read me!\"",
    "german": "Die Größe des Buches beträgt 21 × 14 cm – überraschend klein, naïveté eingeschlossen.",
    "french": "L'été dernier, à l'œuvre : « n'oubliez pas les 1 234,56 € », a-t-elle dit…",
    "turkish": "İstanbul'da ışıklı şehir, ığdır'ın çığlığı; öğüt verdiğim çocuk.",
    "vietnamese": "Trường đại học đã xuất bản quyển sách thứ hai mươi bốn.",
    "russian": "Печатный двор выпустил 25 книг, и ни одна из них не повторяла другую; съешь же ещё.",
    "ukrainian": "Їжак з'їв ґречне яблуко, а щиголь — ні.",
    "greek": "Ἐν ἀρχῇ ἦν ὁ λόγος, και το βιβλίο τυπώθηκε στη Βενετία.",
    "chinese": "活字印刷術發明於北宋,比古騰堡早了約400年。这本书有八开本。",
    "japanese": "吾輩は猫である。名前はまだ無い。カタカナとひらがな、そして漢字。",
    "korean": "직지심체요절은 1377년에 금속 활자로 인쇄되었다. 값은 얼마예요?",
    "arabic": "الكتابُ خيرُ جليسٍ في الأنام، وقد طُبع عام ١٥١٤ في فانو.",
    "persian": "می‌خواهم کتاب را بخوانم؛ قیمتش ۱۲۰ تومان است.",
    "hebrew": "בְּרֵאשִׁית בָּרָא אֱלֹהִים — הספר נדפס בוונציה.",
    "hindi": "यह पुस्तक १८७३ में छपी थी; क्षत्रिय और ज्ञान के अर्थ पढ़िए।",
    "tamil": "நூல் அச்சிடப்பட்டது; அது மிகவும் அழகானது.",
    "thai": "หนังสือเล่มนี้พิมพ์ครั้งแรกเมื่อปีพุทธศักราช ๒๓๗๙",
    "georgian": "წიგნი დაიბეჭდა რომში 1629 წელს.",
    "emoji": "👩‍👩‍👧‍👦 read 📚📖 in 🇩🇪 and 🏴󠁧󠁢󠁷󠁬󠁳󠁿, 👍🏽 — 😀😂🤣!",
    "rare": "𒀀𒁀 𓂀 𐍈 ᚠᛇᚻ ⰀⰁ ꙮ ﷽ ẞ ﬃ Å ñ é \u200b\u00ad\ufeff",
    "mathematics": "∀ε>0 ∃δ>0: |x−a|<δ ⇒ |f(x)−f(a)|<ε, ∑ᵢ₌₁ⁿ i² = n(n+1)(2n+1)/6 ≈ ½·n³",
    "python": (
        'def fold(sheet: list[int], *, times=3) -> "Octavo":\n'
        '    """Fold it."""\n'
        "    if len(sheet) != 2**times:\n"
        "\t\traise ValueError(f'{len(sheet)=} is not {2**times}')\n"
        "    return [x for x in sheet if x % 2 == 0]  # keep the even ones\n"
    ),
    "html": '<table class="x"><tr><td>&nbsp;1&amp;2</td></tr></table>\r\n<!-- </b> <code>x<y</code> -->',
    "json": '{"a": [1, 2.5e-10, null, true], "b": {"c": "\\u00e9\\n"}}',
    "urls": "https://example.org/a/b?c=1&d=%20e#f_g-h.i~j user@host.example C:\\Temp\\x.txt",
    "spaces": "  two   three    four\ttab\t\ttabs \n \n\n  x\n\n\ny     ",
    "lines": "\n\n\n\nfour\r\n\r\nwindows\rmac\x0b\x0cpage\u2028separator\u00a0nbsp",
    "marks": "A <b>bold</b> claim: ▁underscored▁▁ words and __dunder__ ### *** --- ...",
    "control": "nul\x00bell\x07escape\x1b[0m delete\x7f",
    "numbers": "0 1 12 123 1234 12345 1,234,567.89 0x1F 1e9 ½ ² ① Ⅷ ٣ 三",
}
"""A text of each kind; none has a run of 32 spaces, where tokenizers of one vocabulary part."""
