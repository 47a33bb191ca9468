#!/usr/bin/env bash
# Proof that the proofs work: programs that are broken on purpose, each at one spot of src/, must be caught.
#   scripts/mutants.sh                     all of them: some minutes
#   scripts/mutants.sh abort_not_told      only these
#   scripts/mutants.sh --list              which there are, and what should catch each
#   SEEDS=2000 scripts/mutants.sh          looks further before it says that a mutant lives
# A mutant is a `mutant!("name")` in the source (src/core/mutant.rs): one build holds them all, and no other build has any.
# First the checks must pass with nothing broken. Then each mutant is shown to the check that is for it, which must fail,
# and by saying what is wrong: a mutant that hangs or just dies was not caught.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export CARGO_TERM_COLOR="${CARGO_TERM_COLOR:-never}"

seeds="${SEEDS:-300}"
# Seconds of one check.
patience=240

# Name, check, and what is broken. A check is a test of tests/sim, one of tests/verbs or tests/control, or tests of the
# library's engine, shard, memory and server, of rpc's worker (node), and of autograd. `seeds` runs worlds
# made for nothing in particular; where they find nothing in so many, the world that was made for the rule is asked.
mutants=(
    "generation_unchecked            seeds           tickets of an earlier life of their slot are taken for this one's"
    "landing_freed_at_its_deadline rules::rule_05_quiet a landing is free when its receive ends, though a write may come yet"
    "deferred_receives_not_aborted   seeds           receives that wait do not end with their step"
    "lease_reclaimed_on_expiry       seeds           memory is used again though a peer may read it"
    "leases_of_ended_epochs_sent_back returned::another_life_of_the_owner_gets_a_copy a lease goes back to a life of its owner that never gave it"
    "credit_needed_for_requested     seeds           values that were asked for need push credit"
    "short_values_spend_no_credit    seeds           values that leave at once are more than the peer has room for"
    "short_values_share_an_ordinal   seeds           a value that left at once leaves its ordinal to the next"
    "ordinals_never_turn             seeds           a key has carried all its values after 2^32 of them"
    "receives_alone_have_no_deadline seeds           a receive that waits alone outlasts its deadline"
    "acknowledgement_ignored_on_reconnect seeds      a new connection repeats what the peer has had"
    "frames_not_kept                 seeds           a new connection repeats nothing"
    "deadline_ignored                seeds           receives outlast their deadline"
    "tombstones_forgotten            seeds           it is forgotten that a step ended"
    "peers_lost_together             seeds           what waits for any peer ends with one that is lost"
    "restart_unnoticed rules::rule_09_restarts what was bound to a peer's former life goes on"
    "abort_not_told rules::rule_11_abort_told an abort stays where it was said"
    "ordinals_ignored rules::rule_02_ordinals values of one key come in any order"
    "duplicates_delivered rules::rule_16_duplicates a value that was had comes again"
    "cancel_unanswered rules::rule_03_cancel_answered a cancel is answered only by what was under way"
    "interning_unchecked rules::rule_10_interning key numbers outlive their connection"
    "grant_not_spent_by_write rules::rule_04_write_spends_grant a request for a landing outlives its connection"
    "lanes_taken_as_ordered rules::rule_14_no_order_between_lanes a write is taken to come after the frames before it"
    "refused_until_connected rules::rule_13_parks_until_connected a value for a peer that is not there yet is refused"
    "frames_make_steps rules::rule_12_grace a frame makes a step as a use of this task does, beyond the grace table"
    "landings_unbudgeted rules::rule_15_landing_budget landings are opened without end"
    "answers_unbounded               channel::tests::bounds::no_more_values_are_taken_for_requests_that_are_over_than_may_have_crossed values for requests that are over are taken without an end"
    "stream_unbounded                channel::tests::bounds::a_peer_that_acknowledges_nothing_and_is_answered_is_refused answers to a peer that acknowledges nothing are kept without an end"
    "early_unbounded                 shard::reorder::tests::a_link_that_leaves_gaps_is_told_from_the_others values that overtook others are kept without an end"
    "declined_untold                 testing::tests::lies::an_offer_that_finds_no_place_ends_its_step a value for which there is no room is lost without a word"
    "incarnation_unchecked           testing::tests::lies::a_peer_is_of_the_life_that_it_was_greeted_as a peer's shard may be of another life than was greeted"
    "neighbours_not_rung             testing::tests::teams::a_note_rings_the_neighbour_it_is_for a shard that sleeps hears its neighbours when it wakes by itself"
    "shards_stop_alone               testing::tests::teams::the_last_value_of_a_task_leaves_by_a_neighbours_key a shard ends though another has a value for its keys"
    "parked_stay_at_left_links       testing::tests::teams::parked_values_follow_a_peer_to_another_number_of_shards values stay at links that their peer has left"
    "neighbours_of_any_life          testing::tests::teams::a_receive_at_a_neighbour_ends_if_another_life_comes a receive at a neighbour takes values of any life"
    "landings_of_any_offer           shard::transfers::tests::a_number_that_went_round_is_of_another_offer a landing of one offer is taken for that of another"
    "kernels_made_for_each_plan      server::session::tests::a_seeded_stream_goes_on_over_all_kinds_of_steps a seeded stream begins again for each kind of step"
    "leases_of_former_lives_released testing::tests::leases::a_lease_of_an_ended_epoch_is_never_one_of_this a lease that came back after 4096 lives is taken for one of this"
    "ended_sockets_leave_twice       fabric::tcp::tests::a_socket_that_ends_takes_only_itself_off_the_hot_list a socket that ends takes another off the hot list"
    "unsendable_sockets_stay_open    fabric::tcp::tests::a_connection_whose_keys_are_used_up_ends_behind_what_the_peer_sent a connection on which nothing can be sent stays"
    "local_peers_untold              engine::ending::tests::an_end_is_told_to_those_that_wait_for_its_values an engine that ends says nothing to those of its process"
    "second_shutdown_returns         engine::ending::tests::a_second_shutdown_waits_for_the_end_that_the_first_began a second shutdown returns before the end"
    "verbs_busy_pairs_kept           verbs::faults::a_queue_pair_ends_while_another_keeps_the_port_busy a queue pair never ends while the port is busy"
    "one_receive_asks_for_all        testing::tests::teams::asking::each_receive_asks_though_an_older_one_has_left a receive does not ask where another of its key has"
    "offers_unbounded                testing::tests::teams::sent_on::what_is_sent_on_keeps_to_the_bound what is kept on offer meets no bound"
    "given_up_slots_kept             testing::tests::teams::values_that_are_given_up_leave_no_slots_behind values that are given up leave their slots behind"
    "stops_await_no_peer             testing::tests::teams::values_for_a_peer_that_is_about_to_come_leave_before_the_end a task that ends drops what a peer that is about to connect was sent"
    "later_leases_not_told_held      testing::tests::teams::in_place::a_stop_does_not_wait_for_what_its_peer_has_received a peer that leaves hears of no value that is received while it waits"
    "parked_leases_told_held         testing::tests::teams::in_place::a_stop_does_not_wait_for_what_its_peer_has_received a peer that leaves hears that a value was received, and it lies unread"
    "unreceived_values_hold_peers_up testing::tests::teams::in_place::two_that_stop_at_once_do_not_wait_for_each_other two tasks that end at once wait for each other"
    "offers_of_former_ways_wait      testing::tests::teams::in_place::a_value_that_was_to_be_read_in_place_is_copied_by_another_way a value that was to be read in place waits for news that does not come by another way"
    "earlier_receives_outlive_peers  testing::tests::teams::a_receive_that_began_before_its_peer_was_lost_ends a receive that its shard hears of after the loss of its peer waits for another life"
    "stopped_receives_owe_on         testing::tests::teams::a_receive_that_has_asked_holds_no_shutdown_up what was asked for is owed though none waits for it"
    "left_links_stay_up              testing::tests::teams::a_peer_that_changes_its_number_of_shards_in_one_life_keeps_no_connection links that a peer has left stay connected"
    "device_gates_of_ended_keepers_trusted memory::cuda::tests::time::who_reads_while_the_owner_dies_is_told_that_the_bytes_never_came bytes behind a gate that was opened early are taken for written"
    "landing_serial_unchecked     landings::a_write_ends_with_its_landing a write goes on in the landing that came next"
    "busy_keys_forgotten             seeds           keys leave though values, requests or frames of them are under way"
    "verbs_send_errors_ignored       verbs::faults::every_completion_status_ends_its_queue_pair_and_no_other a request that failed is taken for done"
    "verbs_receive_errors_ignored    verbs::faults::a_receive_that_fails_ends_its_queue_pair_and_no_other a receive that failed is taken for done"
    "verbs_reasons_lost              verbs::faults::every_completion_status_ends_its_queue_pair_and_no_other retries exceeded and refused accesses are told as a mere reset"
    "verbs_error_ends_all            verbs::faults::every_completion_status_ends_its_queue_pair_and_no_other one queue pair's error ends those of other peers"
    "verbs_errno_lost                verbs::faults::every_call_that_fails_is_named_and_leaves_nothing_behind a call's error number is not told"
    "verbs_posts_behind_a_refused_one verbs::faults::nothing_follows_a_refused_post frames are taken behind a hole"
    "verbs_refused_post_ignored      verbs::faults::a_cut_wire_a_lost_peer_and_a_refused_post_end_in_good_order a post that was refused is taken for done"
    "verbs_port_event_ignored        verbs::faults::events_of_the_device_reach_whom_they_are_about a port that went down is not noted"
    "verbs_pair_event_ignored        verbs::faults::events_of_the_device_reach_whom_they_are_about a queue pair that the device broke stays up"
    "verbs_device_event_ignored      verbs::faults::events_of_the_device_reach_whom_they_are_about a device that is gone is used on"
    "verbs_claims_unchecked          verbs::faults::a_peers_claims_are_judged_before_the_device_is_asked what a peer says of its queue pair is believed"
    "verbs_regions_unchecked         verbs::faults::a_peers_region_is_judged_before_it_is_written what a peer says of its landing is believed"
    "verbs_quarantine_unkept         verbs::faults::what_cannot_be_proved_quiet_is_kept_and_counted memory comes back though its queue pair lives"
    "stragglers_awaited server::master::link::tests::a_step_that_is_cancelled_waits_for_no_part_that_does_not_answer a failed step waits for a stopped worker"
    "steps_not_cleaned_up graphs::graphs a step of a session that is over stays at its workers"
    "lost_masters_ignored graphs::graphs sessions outlive the master that began them"
    "failed_runs_wait_on server::executor::tests::engines::a_failing_kernel_ends_the_step_with_its_own_failure_and_for_others_as_a_consequence what a part that failed waits for does not end with it"
    "cancelled_receives_take_values  unread::a_cancelled_receive_takes_nothing_that_is_sent_afterwards a receive that was cancelled takes what is sent afterwards"
    "unread_values_lost              unread::what_was_not_read_goes_back_to_the_front a value whose receive was dropped is gone"
    "unread_values_go_last           unread::what_was_not_read_goes_back_to_the_front a value whose receive was dropped stands behind those sent after it"
    "posted_before_what_waits        seeds           a value is posted at once though frames before it wait"
    "finish_not_told engine::steps::tests::who_waits_for_a_task_that_has_finished_the_step_hears_so a finished step is not told to peers"
    "dropped_values_not_told graphs::regressions::a_receive_of_what_was_dropped_meanwhile_is_told what a peer dropped because it had been given up is waited for without end"
    "arenas_of_any_engine regressions::a_tensor_of_another_engine_is_not_read_in_the_senders_arena a tensor in another engine's arena is offered under that one's number"
    "segments_of_any_life            regressions::a_segment_of_another_life_is_not_read a segment is taken for that of another life of its task's"
    "given_up_lives_not_told testing::tests::teams::last_ends a life that was given up is not told which ends it missed"
    "awaited_peers_not_told engine::steps::tests::a_peer_that_comes_later_hears_how_steps_ended how a step ended is not kept for a peer that is awaited"
    "fresh_handle_unaware engine::steps::tests::a_handle_made_after_the_end_knows_of_it a handle that is made after its step's end does not know of it"
    "panicked_tasks_wait_on testing::tests::tasks::a_panic_ends_its_task_and_what_it_waits_for receives of a task that panicked take values"
    "seals_unchecked                 memory::mapped  memory that can be cut short is mapped"
    "region_bounds_unchecked         memory::mapped  a region beyond its segment is read"
    "device_region_unchecked         memory::cuda::tests::claims_of_a_peer_are_checked a region beyond its segment of a device is named"
    "device_blocks_freed_before_their_streams memory::cuda::tests::world a device's block comes home though its writer's stream is not past it"
    "device_leases_released_before_streams memory::cuda::tests::world a lease ends though its reader's stream is not past it"
    "device_sources_released_before_copies memory::cuda::tests::world a copy's source comes home though the copy is not over"
    "device_stamps_unchecked         memory::cuda::tests::copies::an_event_that_was_never_recorded_is_refused a peer's event that was never recorded is waited for"
    "device_bytes_unchecked          memory::cuda::tests::time::who_reads_while_the_owner_dies_is_told_that_the_bytes_never_came what an owner that died never wrote is read as its value"
    "padding_shown                   memory::private who maps a tensor's pages sees what lay there before it"
    "rpc_calls_repeated               node::tests::seeds::each_rule_switched_off_shows_harm a call that comes again is carried out again"
    "rpc_mark_ignored                 node::tests::seeds::each_rule_switched_off_shows_harm numbers that are over are remembered one by one"
    "rpc_cancel_untold                node::tests::seeds::each_rule_switched_off_shows_harm a caller that gives up says nothing"
    "rpc_cancel_forgotten             node::tests::seeds::each_rule_switched_off_shows_harm a call that comes after its cancel is carried out"
    "rpc_control_sent_once            node::tests::seeds::each_rule_switched_off_shows_harm control messages are sent once"
    "rpc_lives_ignored                node::tests::seeds::each_rule_switched_off_shows_harm messages of another life are taken for those of this one"
    "rpc_past_lives_forgotten         node::tests::seeds::each_rule_switched_off_shows_harm a life that is over begins again"
    "rpc_ids_of_any_life              node::tests::seeds::each_rule_switched_off_shows_harm identities of one life are used again in the next"
    "rpc_death_ends_no_call           node::tests::seeds::each_rule_switched_off_shows_harm calls of a worker that is gone go on"
    "rpc_death_stops_nothing          node::tests::seeds::each_rule_switched_off_shows_harm what a worker that is gone has called goes on"
    "rpc_death_ends_no_share          node::tests::seeds::each_rule_switched_off_shows_harm shares of a worker that is gone stay"
    "rpc_confirming_endless           node::tests::seeds::each_rule_switched_off_shows_harm a call whose answer waits for confirmations outlasts its deadline"
    "rpc_window_unbounded             node::tests::seeds::each_rule_switched_off_shows_harm any number of calls is under way"
    "rpc_serving_unbounded            node::tests::seeds::each_rule_switched_off_shows_harm any number of calls of one worker is taken"
    "rpc_deadline_unknown_to_server   node::tests::seeds::each_rule_switched_off_shows_harm calls begin after their deadline"
    "rpc_delete_untold                node::tests::seeds::each_rule_switched_off_shows_harm the owner is not told when a share ends"
    "rpc_parent_dropped               node::tests::seeds::each_rule_switched_off_shows_harm a share goes before its child is known"
    "rpc_fork_unregistered            node::tests::seeds::each_rule_switched_off_shows_harm the owner sends a share that it does not know"
    "rpc_lost_fork_kept               node::tests::seeds::each_rule_switched_off_shows_harm a share that was lost on its way stays"
    "rpc_unconfirmed_run              node::tests::seeds::each_rule_switched_off_shows_harm functions run before their references are confirmed"
    "rpc_tombstones_forgotten         node::tests::seeds::each_rule_switched_off_shows_harm a value is made whose share was deleted"
    "rpc_early_use_refused            node::tests::seeds::each_rule_switched_off_shows_harm a value cannot be used before its creation has come"
    "rpc_early_of_any_life            node::tests::seeds::each_rule_switched_off_shows_harm a value that another life was to make is waited for"
    "rpc_gone_untold                  node::tests::seeds::each_rule_switched_off_shows_harm a share of what is no more is taken for one of a value"
    "rpc_fetch_does_not_wait          node::tests::seeds::each_rule_switched_off_shows_harm a value is fetched before it is made"
    "rpc_unmade_untold                node::tests::seeds::each_rule_switched_off_shows_harm who waits for a value that is never made hears nothing"
    "rpc_unmet_taken_for_lost         node::tests::seeds::each_rule_switched_off_shows_harm a reference to a worker that is not met yet is refused"
    "rpc_took_untold                  node::tests::seeds::each_rule_switched_off_shows_harm a callee is not told that references have come"
    "rpc_one_round                    node::tests::seeds::each_rule_switched_off_shows_harm all leave when each was idle once"
    "rpc_shutdown_deadline_ignored    node::tests::seeds::each_rule_switched_off_shows_harm a shutdown outlasts its deadline"
    "rpc_end_untold                   remote::tests::contexts::a_pass_ends_when_its_own_worker_leaves_though_nothing_of_it_is_under_way observers do not hear that their own worker has left"
    "rpc_unsent_untold                remote::tests::contexts::a_call_that_its_own_worker_refuses_leaves_nothing observers do not hear of calls that ended before they left"
    "autograd_messages_repeated       autograd::tests::seeds::each_rule_switched_off_shows_harm a message that comes again is taken again"
    "autograd_joined_untold           autograd::tests::seeds::each_rule_switched_off_shows_harm who holds a context through another does not tell its creator"
    "autograd_release_untold          autograd::tests::seeds::each_rule_switched_off_shows_harm the holders of a context are not told of its release"
    "autograd_release_forgotten       autograd::tests::seeds::each_rule_switched_off_shows_harm a call that comes after the release brings the context back"
    "autograd_death_releases_nothing  autograd::tests::seeds::each_rule_switched_off_shows_harm contexts of a worker that is dead stay"
    "autograd_death_fails_nothing     autograd::tests::seeds::each_rule_switched_off_shows_harm passes that need a worker that is dead go on"
    "autograd_dependencies_uncounted  autograd::tests::seeds::each_rule_switched_off_shows_harm a worker is through before all functions have run"
    "autograd_answered_at_once        autograd::tests::seeds::each_rule_switched_off_shows_harm a worker answers before what follows is done"
    "autograd_root_counts_nothing     autograd::tests::seeds::each_rule_switched_off_shows_harm the root does not wait for what was sent to it"
    "autograd_fail_untold             autograd::tests::seeds::each_rule_switched_off_shows_harm a failure is told to no one"
    "autograd_failed_gradients_kept   autograd::tests::seeds::each_rule_switched_off_shows_harm gradients of a pass that failed count"
    "autograd_undelivered_ignored     autograd::tests::seeds::each_rule_switched_off_shows_harm a pass goes on without a message that was given up"
    "autograd_doubt_unasked           autograd::tests::seeds::each_rule_switched_off_shows_harm who took part and loses another does not ask whether the pass failed"
    "autograd_untold_holder_kept      autograd::tests::seeds::each_rule_switched_off_shows_harm a context stays whose creator cannot be told"
    "lookouts_give_no_turns           control::lookouts::who_looks_out_for_calls_sees_to_all_else timers and greetings wait while calls go on"
    "lookouts_acknowledge_at_their_end control::lookouts::answers_of_many_peers_are_acknowledged answers are acknowledged only when no call comes any more"
    "autograd_sessions_ignored        autograd::tests::seeds::each_rule_switched_off_shows_harm messages of before a loss are taken for those of after it"
)

names=() checks=() breaks=()
for row in "${mutants[@]}"; do
    read -r name check what <<<"$row"
    names+=("$name") checks+=("$check") breaks+=("$what")
done
known() {
    local at
    for at in "${!names[@]}"; do [ "${names[at]}" != "$1" ] || { found="$at"; return 0; }; done
    return 1
}
# The list here and the spots in the source are one.
spots="$(grep -rhoE 'mutant!\("[a-z_]+"\)' --include='*.rs' --exclude=mutant.rs src | cut -d '"' -f 2 | sort)"
[ -z "$(uniq -d <<<"$spots")" ] || { echo "mutants: two spots of src/ are called $(uniq -d <<<"$spots")" >&2; exit 2; }
for name in $(grep -vxF "$(printf '%s\n' "${names[@]}")" <<<"$spots"); do
    echo "mutants: src/ has a mutant '$name' that no check is given for here" >&2
    exit 2
done
for name in "${names[@]}"; do
    grep -qxF "$name" <<<"$spots" || { echo "mutants: nothing in src/ is broken by '$name'" >&2; exit 2; }
done
if [ "${1:-}" = --list ]; then
    for at in "${!names[@]}"; do printf '%-38s %-36s %s\n' "${names[at]}" "${checks[at]}" "${breaks[at]}"; done
    exit
fi
chosen=()
for name in "$@"; do
    known "$name" || { echo "mutants: no mutant '$name'; --list shows them" >&2; exit 2; }
    chosen+=("$found")
done
[ $# -gt 0 ] || chosen=("${!names[@]}")

# Wraps the compiler for the crates of src/ alone: what it stands on is that of every other build.
made="$PWD/target/mutants"
log="$made/log"
mkdir -p "$made"
printf '#!/bin/sh\nexec "$@" --cfg rendez_mutants\n' >"$made/rustc"
chmod +x "$made/rustc"
export RUSTC_WORKSPACE_WRAPPER="$made/rustc"
# Which program holds a check: those of the libraries' own tests, that of RDMA's faults, or the simulation's.
holder() {
    case "$1" in
        channel::* | fabric::* | memory::* | trace::* | mail::* | shard::* | testing::*) of=rendez_core ;;
        engine::*) of=rendez ;;
        server::*) of=rendez_dataflow ;;
        verbs::*) of=verbs ;;
        node::*) of=rendez_rpc ;;
        autograd::* | remote::*) of=rendez_autograd ;;
        control::*) of=control ;;
        *) of=sim ;;
    esac
}
declare -A programs=()
build() {
    local which=(--test "$1")
    case "$1" in rendez*) which=(--lib) ;; esac
    cargo test --locked --no-run --profile checked "${which[@]}" >"$log" 2>&1 || {
        tail -n 40 "$log" >&2
        echo "mutants: the tree itself does not build" >&2
        exit 1
    }
    programs[$1]="$(sed -n "s/^ *Executable .*(\\(.*\\/$1-[0-9a-f]*\\))\$/\\1/p" "$log" | tail -n 1)"
    [ -x "${programs[$1]}" ]
}
# Runs a check with a mutant, or with none; what it said is in $log.
run() {
    local which=("${2#verbs::}")
    which=("${which[0]#control::}")
    case "$2" in memory::*) ;; *) which+=(--exact) ;; esac
    holder "$2"
    MUTANT="$1" SEEDS="$seeds" FAILURES=1 RUST_BACKTRACE=0 timeout "$patience" "${programs[$of]}" "${which[@]}" \
        --nocapture >"$log" 2>&1
}

passed=" "
for at in "${chosen[@]}"; do
    check="${checks[at]}"
    case "$passed" in *" $check "*) continue ;; esac
    holder "$check"
    [ -n "${programs[$of]:-}" ] || build "$of"
    began=$SECONDS
    run "" "$check" || { tail -n 40 "$log" >&2; echo "mutants: $check fails with nothing broken" >&2; exit 1; }
    # A name that no test has passes, and would catch nothing.
    grep -qE 'test result: ok\. [1-9]' "$log" || { echo "mutants: there is no check $check" >&2; exit 2; }
    printf 'nothing broken: %s passes, %d s\n' "$check" $((SECONDS - began))
    passed+="$check "
done

alive=()
for at in "${chosen[@]}"; do
    name="${names[at]}" check="${checks[at]}" outcome="" after=""
    began=$SECONDS status=0
    run "$name" "$check" || status=$?
    after="$((SECONDS - began)) s"
    # A failing world says its seed and what it saw; a failing test, what it expected.
    said="$(sed -n '/^SEED=/{/:$/{N;s/\n */ /};s/^SEED=\([0-9]*\) .*  # \(.*\)/seed \1: \2/p;q}' "$log")"
    case "$check" in *::*) said="$(grep -A 3 'panicked at' "$log" | head -n 4 | tr '\n' ' ' || true)" ;; esac
    case "$status" in
        0) outcome="LIVES" ;;
        101) [ -n "$said" ] || outcome="FAILS WITHOUT A WORD" ;;
        124) outcome="HANGS" ;;
        *) outcome="DIES with status $status" ;;
    esac
    if [ -n "$outcome" ]; then
        alive+=("$name")
        cp "$log" "$made/$name.log"
        said="$outcome; see target/mutants/$name.log"
    fi
    printf '%-38s %-36s %6s  %s\n' "$name" "$check" "$after" "${said:0:160}"
done
if [ "${#alive[@]}" -gt 0 ]; then
    printf 'mutants: NOT CAUGHT: %s\n' "${alive[*]}" >&2
    exit 1
fi
printf 'mutants: all %d are caught\n' "${#chosen[@]}"
