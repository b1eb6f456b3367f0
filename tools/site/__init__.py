"""The documentation as one offline site: pages of the repository, and reference pages made from the code."""
