/* custody.pml - the question and its answer by which one node hands a shard to another
 * (lib/placement/sy_lifecycle.h), for a model checker: one shard, three nodes, an operator who
 * writes NODE as often as EDITS, nodes that read it late or never, loads that fail, messages that
 * are lost or overtake each other. In every state some node has the shard.
 *     spin -run custody.pml
 * OLD_ANSWERS, or ANY_PLACEMENT and LINGERING_COUNTS together, plant a mistake: errors > 0. */
#define N     3
#define EDITS 3
#define ASKS  2 /* per node */

mtype = { absent, loading, resident, lingering };

byte wanted = 0; /* the placement, and its hash */
byte in_force[N];
mtype state[N];
byte question[N]; /* 0: none is open */
byte n_asked[N];

chan questions = [2] of { byte, byte, byte };      /* to, from, number */
chan answers = [2] of { byte, byte, byte, mtype }; /* to, number, placement, state */

#define has(n) (state[n] == resident || state[n] == lingering)

#ifdef OLD_ANSWERS
#define is_mine(number) true
#else
#define is_mine(number) (question[me] != 0 && number == question[me])
#endif
#ifdef ANY_PLACEMENT
#define is_agreed(placement) true
#else
#define is_agreed(placement) (placement == in_force[me])
#endif
#ifdef LINGERING_COUNTS
#define is_kept(s) (s == resident || s == lingering)
#else
#define is_kept(s) (s == resident)
#endif

proctype operator()
{
    byte edits = 0;
end:
    do
    :: edits < EDITS -> edits++; select(wanted : 0 .. 2)
    od
}

proctype node(byte me)
{
    byte from, number, placement; /* 0 and absent when not in use: fewer states */
    mtype other = absent;
end:
    do
    :: atomic { /* a placement comes into force */
           in_force[me] != wanted ->
           in_force[me] = wanted;
           question[me] = 0;
           if
           :: wanted == me && state[me] == lingering -> state[me] = resident
           :: wanted == me && state[me] == absent -> state[me] = loading
           :: wanted != me && state[me] == resident -> state[me] = lingering
           :: else
           fi
       }
    :: atomic { /* a load ends: well, or not */
           state[me] == loading ->
           if
           :: in_force[me] == me -> state[me] = resident
           :: in_force[me] != me -> state[me] = lingering
           :: in_force[me] != me -> state[me] = absent
           fi
       }
    :: atomic {
           state[me] == lingering && n_asked[me] < ASKS && nfull(questions) ->
           n_asked[me]++;
           question[me] = n_asked[me];
           questions!in_force[me], me, question[me]
       }
    :: atomic {
           nfull(answers) && questions??[eval(me), from, number] ->
           questions??eval(me), from, number;
           if
           :: answers!from, number, in_force[me], state[me]
           :: skip /* it is lost */
           fi;
           from = 0;
           number = 0
       }
    :: atomic {
           answers??[eval(me), number, placement, other] ->
           answers??eval(me), number, placement, other;
           if
           :: state[me] == lingering && is_mine(number) && is_agreed(placement) &&
              is_kept(other) ->
              state[me] = absent;
              question[me] = 0;
              assert(has(0) || has(1) || has(2))
           :: skip /* it is lost */
           fi;
           number = 0;
           placement = 0;
           other = absent
       }
    od
}

init {
    atomic {
        state[0] = resident;
        state[1] = absent;
        state[2] = absent;
        run operator();
        run node(0);
        run node(1);
        run node(2)
    }
}
