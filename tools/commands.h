/* commands.h - the commands of the `switchyard` tool. Each parses its own arguments (argv[0] is the
 * command's name), prints to stdout what was asked for and to stderr what went wrong, and returns
 * the exit code: 0 done, 1 it failed, 2 the command line was wrong. */
#ifndef COMMANDS_H
#define COMMANDS_H

int cmd_run(int argc, char **argv); /* one process, no gRPC, no Redis */
int cmd_up(int argc, char **argv);  /* a local cluster */
int cmd_down(int argc, char **argv);
int cmd_status(int argc, char **argv);
int cmd_generate(int argc, char **argv); /* a client of an aggregator */
int cmd_forward(int argc, char **argv);
int cmd_placement(int argc, char **argv); /* which expert is wanted where: many commands */
int cmd_canary(int argc, char **argv);
int cmd_drain(int argc, char **argv);   /* empties a node */
int cmd_balance(int argc, char **argv); /* replicates and moves experts by load */
int cmd_devices(int argc, char **argv); /* what this machine can compute on */
int cmd_inspect(int argc, char **argv); /* what a checkpoint holds */
int cmd_synth(int argc, char **argv);   /* writes a checkpoint of random weights */

#endif
