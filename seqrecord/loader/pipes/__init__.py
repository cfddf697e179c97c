"""The loaders that training code uses: their arguments, epochs, states, ranks."""
