"""Results for people to look at: answers painted on their pictures."""
