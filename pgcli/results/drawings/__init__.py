"""Views of results: overlays on images, the gallery page, notebook tables and exports."""
