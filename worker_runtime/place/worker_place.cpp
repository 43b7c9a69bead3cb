#include "worker_runtime/place/worker_place.hpp"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cstdlib>

#include "rendezvous/base/slurm_counts.hpp"
#include "rendezvous/base/worker_env.hpp"
#include "worker_runtime/place/throw_error.hpp"

namespace torchup {
namespace {

/// The names under which one launcher tells a process its ranks.
struct RankNames {
  const char* launcher;
  const char* rank;
  const char* world_size;
  const char* local_rank;
  const char* local_size;
  const char* local_rank_else;  ///< where `local_rank` is not set
  const char* local_size_else;
  const char* needed;  ///< these ranks count only where this is set too; empty: always
};
constexpr std::array rank_names{
    RankNames{"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
              "OMPI_COMM_WORLD_LOCAL_SIZE", "", "", ""},
    RankNames{"Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "", "", "", "SLURM_STEP_ID"},
    RankNames{"PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "PMI_LOCAL_RANK", "PMI_LOCAL_SIZE",
              ""},
};

std::optional<int> number(const EnvironmentLookup& lookup, const char* name) {
  if (*name == '\0') return std::nullopt;
  const auto text = lookup(name);
  if (!text) return std::nullopt;
  int value = 0;
  const auto [end, code] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (code != std::errc{} || end != text->data() + text->size() || value < 0)
    throw_error(std::string{name} + "=" + *text + " is not a number from 0 on");
  return value;
}

/// Tasks of this step on this node. Nothing where Slurm does not say.
std::optional<int> slurm_tasks_on_this_node(const EnvironmentLookup& lookup) {
  constexpr const char* counts_name = "SLURM_STEP_TASKS_PER_NODE";
  const auto counts = lookup(counts_name);
  const auto node = number(lookup, "SLURM_NODEID");
  if (!counts || !node) return std::nullopt;
  const auto read = read_slurm_counts(*counts);
  if (!read) throw_error(fmt::format("{}={} {}", counts_name, *counts, read.error().message()));
  const auto tasks = tasks_of_node(*read, *node);
  if (!tasks) throw_error(fmt::format("{}={} ends before this node, which is node {}", counts_name, *counts, *node));
  return tasks;
}

/// Fills in the place on the node. Where nobody says how many processes it has, there are as many as this one needs to
/// be among them, and others may be on other nodes: a whole job on one node is the one thing that must not be assumed.
void place_on_node(WorkerPlace& place, const RankNames& names, const EnvironmentLookup& lookup) {
  const auto first_of = [&](const char* name, const char* otherwise) {
    const auto value = number(lookup, name);
    return value ? value : number(lookup, otherwise);
  };
  const auto rank = first_of(names.local_rank, names.local_rank_else);
  auto size = first_of(names.local_size, names.local_size_else);
  if (!size && std::string_view{names.launcher} == "Slurm") {
    size = slurm_tasks_on_this_node(lookup);
    const auto nodes = first_of("SLURM_STEP_NUM_NODES", "SLURM_NNODES");
    if (!size && nodes == 1) size = place.world_size;
  }
  place.local_rank = rank ? *rank : size && *size > 0 ? place.rank % *size : 0;
  place.local_size = size.value_or(place.local_rank + 1);
  if (place.local_size <= place.local_rank)
    throw_error(
        fmt::format("{} says local rank {} of {} on this node", names.launcher, place.local_rank, place.local_size));
}

void check_range(const WorkerPlace& place) {
  if (place.world_size < 1) throw_error(fmt::format("the world size is {}; it must be at least 1", place.world_size));
  if (place.rank < 0 || place.rank >= place.world_size)
    throw_error(fmt::format("rank {} is not one of a world of {} (0 to {})", place.rank, place.world_size,
                            place.world_size - 1));
}

/// An argument that says something else than the environment is a mistake worth an error: one of the two is stale.
void check_agreement(const AskedPlace& asked, const WorkerPlace& place, const char* rank_name, const char* size_name) {
  if (asked.world_size && *asked.world_size != place.world_size)
    throw_error(fmt::format("world_size={} was passed, but {}={}; leave the argument out, or unset the variable",
                            *asked.world_size, size_name, place.world_size));
  if (!asked.rank || *asked.rank == place.rank) return;
  const bool looks_local = *asked.rank == place.local_rank;
  throw_error(fmt::format(
      "rank={} was passed, but {}={}{}", *asked.rank, rank_name, place.rank,
      looks_local ? "; LOCAL_RANK passed as rank? Leave the argument out: the rank is read from the environment"
                  : "; leave the argument out, or unset the variable"));
}

/// Ranks as MPI or Slurm tell them; nothing when neither started this process.
std::optional<WorkerPlace> scheduler_place(const EnvironmentLookup& lookup, const RankNames*& names_used) {
  for (const auto& names : rank_names) {
    if (*names.needed != '\0' && !lookup(names.needed)) continue;
    const auto rank = number(lookup, names.rank);
    const auto size = number(lookup, names.world_size);
    if (!rank && !size) continue;
    if (!rank || !size)
      throw_error(std::string{"the environment has "} + (rank ? names.rank : names.world_size) + " but not " +
                  (rank ? names.world_size : names.rank) + "; " + names.launcher +
                  " sets both: start the program with it");
    WorkerPlace place;
    place.launcher = names.launcher;
    place.rank = *rank;
    place.world_size = *size;
    check_range(place);
    place_on_node(place, names, lookup);
    names_used = &names;
    return place;
  }
  return std::nullopt;
}

/// MASTER_ADDR and MASTER_PORT for ranks that came from elsewhere.
void read_meeting_point(WorkerPlace& place, const EnvironmentLookup& lookup) {
  if (place.world_size == 1 && !lookup("MASTER_ADDR")) return;
  const auto address = lookup("MASTER_ADDR");
  const auto port = number(lookup, "MASTER_PORT");
  if (!address || address->empty() || !port)
    throw_error(
        fmt::format("ranks came from {} (rank {} of {}), but {} not set: export the name of rank 0's node and a free "
                    "port there, the same for all ranks, or start the program with torchup",
                    place.launcher, place.rank, place.world_size,
                    address ? "MASTER_PORT is"
                    : port  ? "MASTER_ADDR is"
                            : "MASTER_ADDR and MASTER_PORT are"));
  place.master_addr = *address;
  place.master_port = *port;
  if (*port > 65535) throw_error(fmt::format("MASTER_PORT={} is not a port (0 to 65535)", *port));
}

WorkerPlace place_of(const WorkerEnv& env) {
  return {.rank = env.rank.value(),
          .world_size = env.world_size,
          .local_rank = env.local_rank.value(),
          .local_size = env.local_world_size,
          .master_addr = env.master_addr,
          .master_port = env.master_port.value(),
          .restart_count = env.restart_count,
          .agent_store = env.use_agent_store,
          .launcher = "torchup or torchrun"};
}

}  // namespace

std::optional<std::string> environment_variable(std::string_view name) {
  const char* value = std::getenv(std::string{name}.c_str());
  return value ? std::optional<std::string>{value} : std::nullopt;
}

WorkerPlace worker_place_from_environment(const AskedPlace& asked, const EnvironmentLookup& lookup) {
  WorkerPlace place;
  const RankNames* names = nullptr;
  const bool launcher_ranks = lookup("RANK") || lookup("WORLD_SIZE");
  if (launcher_ranks && !asked.rank && !asked.world_size) {
    auto env = read_worker_env(lookup);
    if (!env) throw_error(env.error().message());
    place = place_of(**env);
  } else if (launcher_ranks) {
    // Arguments may stand in for one of the two variables.
    const EnvironmentLookup completed = [&](std::string_view name) -> std::optional<std::string> {
      if (auto value = lookup(name)) return value;
      if (name == "RANK" && asked.rank) return std::to_string(*asked.rank);
      if (name == "WORLD_SIZE" && asked.world_size) return std::to_string(*asked.world_size);
      return std::nullopt;
    };
    auto env = read_worker_env(completed);
    if (!env) throw_error(env.error().message());
    place = place_of(**env);
    check_agreement(asked, place, "RANK", "WORLD_SIZE");
  } else if (auto found = scheduler_place(lookup, names)) {
    place = *found;
    check_agreement(asked, place, names->rank, names->world_size);
    read_meeting_point(place, lookup);
  } else if (asked.rank || asked.world_size) {
    if (!asked.rank || !asked.world_size)
      throw_error(std::string{asked.rank ? "rank" : "world_size"} + " was passed, but not " +
                  (asked.rank ? "world_size" : "rank") + "; pass both, or none and start the program with torchup");
    place.rank = *asked.rank;
    place.world_size = *asked.world_size;
    place.local_size = place.world_size;
    place.local_rank = place.rank;
    place.launcher = "the arguments";
    check_range(place);
    read_meeting_point(place, lookup);
  } else {
    auto env = read_worker_env(lookup);  // MASTER_ADDR alone is an error, nothing at all is world size 1
    if (!env) throw_error(env.error().message());
  }
  if (asked.local_rank) place.local_rank = *asked.local_rank;
  return place;
}

WorkerPlace worker_place_at(const AskedPlace& asked, const EnvironmentLookup& lookup) {
  WorkerPlace place;
  const RankNames* names = nullptr;
  if (auto found = scheduler_place(lookup, names)) place = *found;
  const auto rank = asked.rank ? asked.rank : number(lookup, "RANK");
  const auto size = asked.world_size ? asked.world_size : number(lookup, "WORLD_SIZE");
  if (!names && (!rank || !size))
    throw_error(std::string{"the address needs "} +
                (rank   ? "a world size"
                 : size ? "a rank"
                        : "a rank and a world size") +
                ": pass rank and world_size, or write them behind the address as ?rank=0&world_size=2");
  place.rank = rank.value_or(place.rank);
  place.world_size = size.value_or(place.world_size);
  place.local_size = number(lookup, "LOCAL_WORLD_SIZE").value_or(names ? place.local_size : place.world_size);
  if (place.local_size < 1) throw_error("LOCAL_WORLD_SIZE=0: it must be at least 1");
  place.local_rank = asked.local_rank.value_or(
      number(lookup, "LOCAL_RANK").value_or(names ? place.local_rank : place.rank % place.local_size));
  check_range(place);
  return place;
}

}  // namespace torchup
