/* main.c - `switchyard COMMAND ...`: the table of commands. */
#include <stdio.h>
#include <string.h>

#include "commands.h"
#include "sy_base.h"

static const struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *help;
} commands[] = {
    {"up", cmd_up,
     "start and supervise a local cluster: Redis, routers, expert nodes, aggregators"},
    {"down", cmd_down, "stop a local cluster"},
    {"status", cmd_status, "processes, nodes and placement of a cluster"},
    {"generate", cmd_generate, "generate text through an aggregator"},
    {"forward", cmd_forward,
     "one MoE layer over hidden rows from a .npy file, through an aggregator"},
    {"placement", cmd_placement,
     "which expert is wanted where: show, set, move, check, plan, apply, history, rollback"},
    {"canary", cmd_canary, "try experts on another device, and promote it or go back"},
    {"drain", cmd_drain, "empty an expert node, and wait until it is safe to stop"},
    {"balance", cmd_balance,
     "replicate hot experts and move others, so that devices share the work"},
    {"run", cmd_run, "generate text in this process: no gRPC, no Redis"},
    {"devices", cmd_devices, "what this machine can compute on, and what keeps a GPU from use"},
    {"inspect", cmd_inspect, "what a checkpoint holds, and the memory it needs"},
    {"synth", cmd_synth, "write a checkpoint of random weights in a given shape"},
};

static void print_help(FILE *out)
{
    fprintf(out,
            "switchyard %s: Mixture-of-Experts serving in three tiers\n\nusage: switchyard COMMAND "
            "[options]\n\n",
            SY_VERSION);
    for (size_t i = 0; i < SY_COUNT_OF(commands); i++)
        fprintf(out, "  %-10s %s\n", commands[i].name, commands[i].help);
    fprintf(out, "\n`switchyard COMMAND --help` tells a command's options.\n");
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        print_help(stderr);
        return 2;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "help") == 0) {
        print_help(stdout);
        return 0;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("switchyard %s\n", SY_VERSION);
        return 0;
    }
    for (size_t i = 0; i < SY_COUNT_OF(commands); i++)
        if (strcmp(argv[1], commands[i].name) == 0) return commands[i].run(argc - 1, argv + 1);
    fprintf(stderr, "switchyard: error: %s is not a command; see switchyard --help\n", argv[1]);
    return 2;
}
