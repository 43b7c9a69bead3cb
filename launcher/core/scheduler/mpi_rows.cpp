#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <span>
#include <utility>

#include "launcher/core/scheduler/rows.hpp"
#include "launcher/core/text/text.hpp"
#include "rendezvous/core/link/messages.hpp"
#include "rendezvous/core/text/names.hpp"

namespace torchup::scheduler {
namespace {

/// Whose word MPI's processes take for their hosts: all of them must see the same one.
constexpr std::array<Row, 5> steps_and_jobs{slurm_step_row, slurm_job_row, lsf_row, pbs_row, sge_row};
/// Open MPI starts its daemons on the other nodes by srun, so that each process there is in a step of them, and those
/// on mpirun's own node are in none.
constexpr std::span<const Row> jobs{steps_and_jobs.begin() + 1, steps_and_jobs.end()};

/// The names under which one MPI tells a process its place.
struct PlaceNames {
  std::string_view scheduler, size, rank, local_size, local_rank;
  std::span<const Row> below;  ///< the batch rows
};
constexpr PlaceNames openmpi{"openmpi",
                             "OMPI_COMM_WORLD_SIZE",
                             "OMPI_COMM_WORLD_RANK",
                             "OMPI_COMM_WORLD_LOCAL_SIZE",
                             "OMPI_COMM_WORLD_LOCAL_RANK",
                             jobs};
constexpr PlaceNames mpich{"mpich", "PMI_SIZE", "PMI_RANK", "MPI_LOCALNRANKS", "MPI_LOCALRANKID", steps_and_jobs};

std::string_view first_label(std::string_view host) { return host.substr(0, host.find('.')); }

/// Nodes are counted as ranks over local ranks: that holds where each node has as many, one node's behind the other's.
Result<Allocation> read_place(const ToldWords& words, const PlaceNames& names) {
  const auto size = words.needed(names.size, 1, world_size_max);
  if (!size) return size.error();
  const auto rank = words.needed(names.rank, 0, *size - 1);
  const auto local_size = words.needed(names.local_size, 1, std::min(*size, local_workers_max));
  if (!rank || !local_size) return rank ? local_size.error() : rank.error();
  const auto local_rank = words.needed(names.local_rank, 0, *local_size - 1);
  if (!local_rank) return local_rank.error();
  if (*size % *local_size != 0) {
    return wrong(names.size, *words.text(names.size),
                 fmt::format("it is no multiple of {}={}: nodes with as many processes each are needed",
                             names.local_size, *local_size));
  }
  if (*rank % *local_size != *local_rank) {
    return wrong(names.rank, *words.text(names.rank),
                 fmt::format("with {}={} and {}={} ranks do not follow nodes: one process per node is simplest",
                             names.local_rank, *local_rank, names.local_size, *local_size));
  }
  Allocation found{.scheduler = std::string{names.scheduler}, .each = true, .gpus_visible = true};
  found.nodes = Told<int>{*size / *local_size, fmt::format("{}, {}", names.size, names.local_size)};
  found.node = Told<int>{*rank / *local_size, fmt::format("{}, {}", names.rank, names.local_size)};
  found.tasks = {*local_size, std::string{names.local_size}};
  found.task = *local_rank;
  return found;
}

/// The batch job around us. The file that lists its hosts may lie on the first of them alone, where the other processes
/// have its name all the same: to them the job has no hosts.
Result<std::optional<Allocation>> batch_allocation(const ToldWords& words, std::span<const Row> rows) {
  SchedulerFacts facts = words.facts();
  facts.file = [&](const std::string& path, std::size_t bytes_max) -> Result<std::string> {
    auto content = words.facts().file(path, bytes_max);
    if (content || content.error().code != boost::system::errc::no_such_file_or_directory) return content;
    return std::string{};
  };
  const ToldWords seen{facts};
  for (const Row row : rows) {
    auto found = row(seen);
    if (!found || *found) return found;
  }
  return std::optional<Allocation>{};
}

/// Hosts, run id and end are the batch job's.
Result<> take_from_batch(const ToldWords& words, const PlaceNames& names, Allocation& found) {
  auto batch = batch_allocation(words, names.below);
  if (!batch) return batch.error();
  if (*batch) {
    found.run_id = (*batch)->run_id;
    found.end = (*batch)->end;
    found.first_host = (*batch)->first_host;
    found.hosts = std::move((*batch)->hosts);
  }
  if (auto address = words.text("MASTER_ADDR"))
    found.first_host = Told<std::string>{*std::move(address), "MASTER_ADDR"};
  auto port = words.port("MASTER_PORT");
  if (!port) return port.error();
  found.port = *std::move(port);
  if (!found.hosts) return {};
  // MPI's order of nodes need not be the list's.
  const auto own = std::ranges::find_if(
      found.hosts->value, [&](const std::string& host) { return first_label(host) == first_label(words.host()); });
  if (own != found.hosts->value.end()) found.own_name = *own;
  return {};
}

/// Several runs of mpiexec may share a batch job: each is a job of its own, where it has a name.
void name_run(std::optional<Told<std::string>> run, Allocation& found) {
  if (!run) return;
  if (found.run_id) {
    run->value = found.run_id->value + "." + run->value;
    run->from = found.run_id->from + ", " + run->from;
  }
  if (!why_no_name(run->value).empty()) return;
  found.run_id = std::move(run);
  found.own_run = true;
}

/// Where hydra's proxies find their mpiexec: they are told alike on all nodes. No variable says it, and of Intel MPI,
/// whose proxies are a tree, nothing does.
std::optional<Told<std::string>> run_of_hydra(const ToldWords& words) {
  if (!words.facts().starter) return std::nullopt;
  constexpr std::string_view option = "--control-port";
  const std::string line = words.facts().starter();
  const auto starter = split(line, '\0');
  const auto at = std::ranges::find(starter, option);
  if (at == starter.end() || std::next(at) == starter.end()) return std::nullopt;
  std::string place{*std::next(at)};
  if (place.empty()) return std::nullopt;
  std::ranges::replace(place, ':', '.');
  return Told<std::string>{std::move(place), fmt::format("{} of hydra's proxy", option)};
}

Result<std::optional<Allocation>> read(const ToldWords& words, const PlaceNames& names) {
  auto found = read_place(words, names);
  if (!found) return found.error();
  if (auto taken = take_from_batch(words, names, *found); !taken) return taken.error();
  return std::optional{*std::move(found)};
}

}  // namespace

Result<std::optional<Allocation>> openmpi_row(const ToldWords& words) {
  if (!words.has(openmpi.size)) return std::optional<Allocation>{};
  auto found = read(words, openmpi);
  if (!found) return found;
  if (auto space = words.text("PMIX_NAMESPACE")) {
    name_run(Told<std::string>{*std::move(space), "PMIX_NAMESPACE"}, **found);
  }
  return found;
}

Result<std::optional<Allocation>> mpich_row(const ToldWords& words) {
  if (!words.has(mpich.local_size) || !words.has(mpich.rank)) return std::optional<Allocation>{};
  auto found = read(words, mpich);
  if (found) name_run(run_of_hydra(words), **found);
  return found;
}

}  // namespace torchup::scheduler
