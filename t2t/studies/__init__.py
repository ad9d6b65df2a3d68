"""Studies: claims of papers, each tested by one command with seeds, intervals and a rule that is stated before.

`definition` has what a study file declares, `figures` and `suite` its columns, `claims` its rule. `results` has rows
and their statistics, `picture` and `page` show them. `t2t.commands.study` trains the runs.
"""
