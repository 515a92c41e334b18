"""What a trainer of prefix language models needs: packed rows, their masks and the loss."""
