"""English words that carry grammar rather than meaning."""

STOP_WORDS = frozenset(
    """
    i me my mine myself we us our ours ourselves you your yours yourself yourselves he him his himself she her hers
    herself it its itself they them their theirs themselves

    who whom whose which what this that these those a an the some any each both all few more most other such own same
    no nor not only

    am is are was were be been being have has had having do does did doing can could will would shall should may might
    must

    and but or if because as until while so than too very just now then once here there when where why how again further

    of at by for with about against between into through during before after above below to from up down in out on off
    over under

    i'm i've i'd i'll you're you've you'd you'll he's he'd he'll she's she'd she'll it's it'll we're we've we'd we'll
    they're they've they'd they'll that's that'll who's what's where's when's there's let's
    isn't aren't wasn't weren't haven't hasn't hadn't don't doesn't didn't won't wouldn't shan't shouldn't should've
    can't cannot couldn't mustn't mightn't needn't
    """.split()  # noqa: SIM905
)
"""English stop words in lower case; contractions have the straight apostrophe (')."""
