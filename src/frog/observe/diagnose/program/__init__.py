"""The cause of a failure of any torch program, from the files that its ranks, launchers and schedulers left.

`gather` fills one `Evidence` from a folder, with one reader per kind of file; the rules read only the `Evidence`.
"""
