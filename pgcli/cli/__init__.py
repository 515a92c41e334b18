"""The command line. No other package imports Typer or Rich."""
