#include "launcher/ctl/verb_table.hpp"

#include <algorithm>
#include <array>

namespace torchup {
namespace {

constexpr std::string_view looking = "Looking at jobs";
constexpr std::string_view ordering = "Giving them orders";
constexpr std::string_view reading = "Reading what they left";

constexpr OptionSpec option(std::string_view name, char short_name, ValueKind kind, std::string_view value,
                            std::string_view help, std::string_view choices = {}) {
  return {name, short_name, kind, value, "", help, choices, false};
}

constexpr std::array events_options = {
    option("follow", 'f', ValueKind::flag, "", "Go on with what comes, to the job's end."),
    option("schema", 0, ValueKind::flag, "", "Print the JSON Schema of all events."),
};
constexpr std::array logs_options = {
    option("rank", 0, ValueKind::integer, "R", "Of this rank (default 0)."),
    option("stream", 0, ValueKind::text, "stdout|stderr", "This one of its streams (default stdout).", "stdout|stderr"),
    option("follow", 'f', ValueKind::flag, "", "Go on with what comes, to the job's end."),
};
constexpr std::array stacks_options = {
    option("rank", 0, ValueKind::integer, "R", "Of this rank only."),
    option("native", 0, ValueKind::flag, "", "Native functions too, of each thread (needs libdw.so.1)."),
};
constexpr std::array stop_options = {
    option("save", 0, ValueKind::flag, "", "Ask the workers to save their state first; the job ends with 75."),
    option("now", 0, ValueKind::flag, "", "By SIGKILL, without a grace."),
};
constexpr std::array resize_options = {
    option("nodes", 0, ValueKind::text, "MIN:MAX", "The new range of nodes."),
};
constexpr std::array node_options = {
    option("node", 0, ValueKind::text, "N", "Node id, group rank or host."),
};
constexpr std::array wait_options = {
    option("timeout", 0, ValueKind::seconds, "SECONDS", "Give up after this time, with 124."),
};
constexpr std::array output_options = {
    option("output", 'o', ValueKind::text, "FILE", "Where to write it; - is stdout."),
};

constexpr std::array verbs = {
    Verb{"ps", "", 0, 0, looking, "The jobs of this machine, one launcher a line."},
    Verb{"status", "[JOB]", 0, 1, looking, "One job: how it goes, its nodes with their ranks, its last incident."},
    Verb{"top", "[JOB]", 0, 1, looking, "The same, drawn again each second; q ends it."},
    Verb{"events", "[JOB|FILE]", 0, 1, looking, "What has happened, one line each.", events_options},
    Verb{"logs", "[JOB]", 0, 1, looking, "What a worker has written, through all attempts, byte for byte.",
         logs_options},
    Verb{"stacks", "[JOB]", 0, 1, looking, "What each rank is doing, and where.", stacks_options},
    Verb{"gpus", "", 0, 0, looking, "The GPUs of this machine, and who holds them."},
    Verb{"page", "[JOB]", 0, 1, looking, "The address of the job's page for browsers, which is opened if need be."},

    Verb{"stop", "[JOB]", 0, 1, ordering, "End the job on all nodes, with 143.", stop_options},
    Verb{"restart", "[JOB]", 0, 1, ordering, "Stop the workers after a step and start them again; costs no restart."},
    Verb{"resize", "[JOB]", 0, 1, ordering, "Change how many nodes the job has.", resize_options},
    Verb{"drain", "[JOB]", 0, 1, ordering, "Take a node out of the job; its agent waits without workers.",
         node_options},
    Verb{"undrain", "[JOB]", 0, 1, ordering, "Let a drained node take part again.", node_options},
    Verb{"wait", "[JOB]", 0, 1, ordering, "Until the job ends; ends with its exit code.", wait_options},

    Verb{"ledger", "JOB|FILE...", 0, many_operands, reading, "Where the job's time has gone, in rank seconds."},
    Verb{"report", "FILE...", 1, many_operands, reading, "One HTML file of event files: the page, with data inside.",
         output_options},
    Verb{"timeline", "FILE...", 1, many_operands, reading, "Event files for Perfetto and chrome://tracing.",
         output_options},
    Verb{"explain", "CODE|SIGNAL", 1, 1, reading, "What an exit code or signal means, and what can be done."},
};

constexpr std::array common = {
    option(
        "endpoint", 0, ValueKind::text, "HOST:PORT",
        "Ask a torchupd, or a node that hosts a rendezvous, instead of this machine's launchers (TORCHUP_ENDPOINT)."),
    option("token-file", 0, ValueKind::text, "FILE", "The job's secret, for --endpoint (TORCHUP_TOKEN)."),
    option("all-users", 0, ValueKind::flag, "", "The jobs of all users of this machine; for root."),
    option("json", 0, ValueKind::flag, "", "Print what was answered as JSON."),
    option("print-completion", 0, ValueKind::text, "bash|zsh|fish|tcsh", "Print the completion script for a shell.",
           "bash|zsh|fish|tcsh"),
    option("version", 0, ValueKind::flag, "", "Print the version."),
    option("help", 'h', ValueKind::flag, "", "Print this help; behind a verb: that verb's."),
};

}  // namespace

std::span<const Verb> verb_table() { return verbs; }

const Verb* find_verb(std::string_view name) {
  const auto found = std::ranges::find(verbs, name, &Verb::name);
  return found == verbs.end() ? nullptr : &*found;
}

std::string nearest_verb(std::string_view name) {
  std::array<std::string_view, verbs.size()> names;
  std::ranges::transform(verbs, names.begin(), &Verb::name);
  return nearest_name(name, names);
}

std::span<const OptionSpec> common_options() { return common; }

const OptionSpec* find_option(const Verb* verb, std::string_view name) {
  if (verb) {
    const auto own = std::ranges::find(verb->options, name, &OptionSpec::name);
    if (own != verb->options.end()) return &*own;
  }
  const auto found = std::ranges::find(common, name, &OptionSpec::name);
  return found == common.end() ? nullptr : &*found;
}

}  // namespace torchup
