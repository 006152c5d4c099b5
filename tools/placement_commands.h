/* placement_commands.h - the commands below `switchyard placement`, with the exit codes of
 * commands.h. */
#ifndef PLACEMENT_COMMANDS_H
#define PLACEMENT_COMMANDS_H

int cmd_placement_set(int argc, char **argv);
int cmd_placement_move(int argc, char **argv);
int cmd_placement_check(int argc, char **argv); /* also 3: something is wrong */
int cmd_placement_plan(int argc, char **argv);
int cmd_placement_apply(int argc, char **argv); /* also 4: it takes too long */
int cmd_placement_history(int argc, char **argv);
int cmd_placement_rollback(int argc, char **argv);

#endif
