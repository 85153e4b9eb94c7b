"""The tables of the cases on answers, for tests in this installation and in others. Values worked out by hand."""

from __future__ import annotations

# A01: gold, answer, equal
PERCENTAGES = [
    (r"35\%", "35", False),  # by default nobody asked for a percentage
    (r"35\%", "0.35", True),
    (r"35\%", "7/20", True),
    (r"35\%", "35 percent", True),
    (r"35\%", r"\boxed{35\%}", True),
    ("0.35", r"\boxed{35\%}", True),
    ("35", r"\boxed{35\%}", False),
    ("0.35", "35", False),
]
BARE_AND_PERCENT = {"35", r"35\%", r"\boxed{35\%}"}

# A04: gold, answer, equal
TOWERS = [
    ("7", "10^{10^{10}}", False),
    ("5", r"\boxed{2^{4^{8^{16}}}}", False),
    ("5", "(10^{9})!", False),
    ("10^{10^{10}}", "10^{10^{10}}", True),
]

# A05: two answers that are never equal
DIFFERENT = [
    ("1/1501!", "1/1503!"),  # their quotient is 1502 · 1503
    ("2^{-120}", "2^{-119}"),  # 2
    ("0.0000003", "0.0000004"),  # 4/3
    (r"1-\frac{1}{\mathrm{e}}", r"1+\frac{1}{\mathrm{e}}"),  # 0.632 and 1.368
    ("5x-2y+9=0", "7x+3y+9=0"),  # slopes 5/2 and −7/3
    (r"\pm 17", "17"),
    ("k=3,5,7", "k=3,5,8"),
    ("S=(0,2)", "S=(0,2.5)"),
    ("1011_2", "1011_3"),  # 11 and 31
    ("10^{-40}", "10^{-41}"),
    (r"\pi", "3.14159265358979323846264338327950288"),
    (r"\sqrt{2}", "1.41421356237309504880168872420969807"),
    (r"\sin 1", "0.84147098480789650665"),
    ("3x+1=0", "y+1=0"),
    ("x^2 + 1", "x^2 - 1"),
    (r"\frac{1}{2}, 3", r"\frac{1}{3}, 3"),
]

# A06: a reply and its reward, the right answer being 9
MENTIONED = [
    ("I considered 9 and rejected it. I do not know.", 0.0),
    (r"First \boxed{9}. Actually it is \boxed{", 0.0),
    (r"<think> maybe \boxed{9}, try again: 3 plus", 0.0),
    (r"<think>\boxed{9}</think> The answer is \boxed{8}", 0.0),
    (r"\boxed{9}", 1.0),
    (" ".join(map(str, range(21))), 0.0),
    ("The answer is 9.", 0.0),
    (r"maybe \boxed{9}</think> I give up.", 0.0),
    (r"maybe \boxed{8}</think> It is \boxed{9}.", 1.0),
    ("Three times three.\n#### 9", 1.0),
    ("#### 9\nNo, wait.\n#### 8", 0.0),
    (r"#### 9" + "\n" + r"\boxed{", 0.0),
    ("<think>\n#### 9\n</think>\nI do not know.", 0.0),
    ("", 0.0),
]

# A07: a reply and its reward, the right option being E
LETTERS = [
    (r"\boxed{\text{E}}", 1.0),
    (r"\boxed{E: it costs less}", 1.0),
    (r"first \boxed{C}, then again \boxed{D}, finally \boxed{E}", 1.0),
    (r"\boxed{C or E}", 0.0),
    (r"\boxed{(E)}", 1.0),
    (r"\boxed{\textbf{(E)}}", 1.0),
    (r"\boxed{\text{E. } 12}", 1.0),
    (r"\fbox{E}", 1.0),
    (r"\boxed{C}", 0.0),
    ("The answer is (E).", 1.0),
    ("So the correct option is **E**.", 1.0),
    ("Because it costs less:\nE", 1.0),
    ("The answer is C. On second thoughts, the answer is E.", 1.0),
    ("The answer is C or E.", 0.0),
    ("The answer is not E.", 0.0),
    ("Is the answer E?", 0.0),
    ("E costs less than C.", 0.0),
]

# A07: a reply and the right answer it gives
BOXED = [
    (r"\fbox{42}", "42"),
    (r"\boxed{\boxed{42}}", "42"),
    (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
    (r"\boxed{0.5}", r"\frac{1}{2}"),
    ("#### 42", "42"),
]
