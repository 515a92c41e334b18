"""--draw DIR: answered pictures with their boxes and masks, saved while the run goes on."""
