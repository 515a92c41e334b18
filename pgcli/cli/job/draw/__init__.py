"""--draw DIR: copies of the answered images with boxes and masks, written during the run."""
