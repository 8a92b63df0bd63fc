"""What the documentation is built and tested with: blocks, the generated reference, the site."""
