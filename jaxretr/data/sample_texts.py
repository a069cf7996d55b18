"""A few texts of several scripts and lengths, with which vectors are compared."""

QUESTIONS = (
    "who wrote the opera The Magic Flute?",
    "When was the telephone invented",
    "¿Quién pintó «Las Meninas»? — 東京タワーの高さは?",
    "x",
)
PASSAGES = (
    (
        "The Magic Flute",
        "The Magic Flute is an opera in two acts by Wolfgang Amadeus Mozart to a German libretto by Emanuel "
        "Schikaneder. It was first performed on 30 September 1791 in Vienna, two months before the composer's death.",
    ),
    ("", "Alexander Graham Bell was awarded the first United States patent for the telephone in 1876."),
    (
        "Las Meninas (Velázquez)",
        "Diego Velázquez painted it in 1656; it hangs in the Museo del Prado. Überlieferung, naïveté, Ελλάδα, Москва, "
        "東京 — a good model's tokenizer survives them all.",
    ),
    ("Title alone", ""),
)
