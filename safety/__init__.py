"""Who has the last word: guards, the shield over them, and its profiles. Pure where it rules."""
