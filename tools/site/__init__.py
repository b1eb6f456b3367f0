"""The documentation as one offline site: pages of the repository, and reference pages generated from the code."""
