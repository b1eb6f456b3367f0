"""The cause of a failure of any torch program, from the files that its ranks, launchers and schedulers left.

`gather` fills one `Evidence` from a folder, with one reader per kind of file: `run_folder_evidence`, `flight_recorder`,
`program_logs` and, for stacks, `code_lines`. The rules read only the `Evidence`; `RULES` in `program_diagnosis` has
their order.
"""
