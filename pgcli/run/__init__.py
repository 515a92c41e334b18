"""One run, whoever starts it: its request, and what computes and saves its rows."""
