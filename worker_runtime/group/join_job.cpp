#include "worker_runtime/group/join_job.hpp"

#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/debug.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "torchup/error.hpp"
#include "worker_runtime/group/backend_factory.hpp"
#include "worker_runtime/group/group_answer.hpp"
#include "worker_runtime/group/meeting.hpp"
#include "worker_runtime/place/device_choice.hpp"
#include "worker_runtime/place/worker_place.hpp"
#include "worker_runtime/store/job_store.hpp"

namespace torchup {
namespace {

using namespace std::chrono_literals;

constexpr auto gloo_timeout = 30min;  // Python's
constexpr auto nccl_timeout = 10min;  // Python's

std::optional<int> whole_number(std::string_view text) {
  int value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  return code == std::errc{} && end == text.data() + text.size() ? std::optional{value} : std::nullopt;
}

/// "?rank=0&world_size=2" behind an address; what the caller passed wins.
void read_query(std::string_view query, AskedPlace& asked) {
  while (!query.empty()) {
    const auto pair = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), pair.size() + 1));
    const auto name = pair.substr(0, pair.find('='));
    auto* target = name == "rank" ? &asked.rank : name == "world_size" ? &asked.world_size : nullptr;
    if (!target) continue;  // use_libuv and the like are PyTorch's
    const auto value = whole_number(pair.substr(std::min(pair.size(), name.size() + 1)));
    if (!value) throw Error{"init_method: \"" + std::string{pair} + "\" is not a number"};
    if (!*target) *target = value;
  }
}

/// Reads init_method into where to meet and who we are.
void read_init_method(const ProcessGroupOptions& options, MeetingPlan& plan) {
  AskedPlace asked{.rank = options.rank, .world_size = options.world_size, .local_rank = options.local_rank};
  std::string_view url = options.init_method;
  if (const auto mark = url.find('?'); mark != url.npos) {
    read_query(url.substr(mark + 1), asked);
    url = url.substr(0, mark);
  }
  if (url == "env://") {
    plan.place = worker_place_from_environment(asked, environment_variable);
  } else if (url.starts_with("tcp://")) {
    url.remove_prefix(6);
    const auto colon = url.rfind(':');
    const int port = colon == url.npos ? -1 : whole_number(url.substr(colon + 1)).value_or(-1);
    if (port < 0 || port > 65535) throw Error{"init_method: \"" + options.init_method + "\" is not tcp://host:port"};
    plan.place = worker_place_at(asked, environment_variable);
    plan.place.master_addr = url.substr(0, colon);
    if (plan.place.master_addr.starts_with('[') && plan.place.master_addr.ends_with(']'))
      plan.place.master_addr = plan.place.master_addr.substr(1, plan.place.master_addr.size() - 2);
    plan.place.master_port = port;
    // The agent's promise holds for its own address only.
    plan.place.agent_store = environment_variable("TORCHELASTIC_USE_AGENT_STORE") == "True" &&
                             environment_variable("MASTER_ADDR") == plan.place.master_addr &&
                             environment_variable("MASTER_PORT") == std::to_string(port);
  } else if (url.starts_with("file://")) {
    plan.file = url.substr(7);
    if (!plan.file.starts_with('/'))
      throw Error{"init_method: \"" + options.init_method + "\" needs an absolute path: file:///path"};
    plan.place = worker_place_at(asked, environment_variable);
  } else {
    throw Error{"init_method: \"" + options.init_method + "\" is none of env://, tcp://host:port, file:///path"};
  }
}

DeviceWish wish_of(const ProcessGroupOptions& options, std::optional<torch::Device> has) {
  DeviceWish wish{.backend = options.backend};
  const auto device = has ? has : options.device;
  if (!device) return wish;
  if (device->is_cuda()) {
    wish.kind = DeviceWish::Kind::gpu;
    if (device->has_index()) wish.index = device->index();
  } else if (device->is_cpu()) {
    wish.kind = DeviceWish::Kind::cpu;
  } else {
    throw Error{fmt::format("device {}: process groups work on cpu and cuda", device->str())};
  }
  return wish;
}

/// Where collectives' tensors live: on the GPU that was asked for, or that the backend needs.
torch::Device device_of(const DeviceWish& wish, const DeviceChoice& choice, const std::string& backend) {
  const bool on_gpu = wish.kind == DeviceWish::Kind::gpu || backend == "nccl";
  return on_gpu ? torch::Device{torch::kCUDA, static_cast<c10::DeviceIndex>(*choice.gpu)} : torch::Device{torch::kCPU};
}

}  // namespace

void connect_group(ProcessGroup::State& state, std::optional<std::chrono::milliseconds> limit) {
  const bool nccl = state.backend_name == "nccl";
  const BackendPlan plan{.store = c10::make_intrusive<c10d::PrefixStore>(nccl ? "cuda/" : "cpu/", state.group_store),
                         .rank = state.rank,
                         .size = static_cast<int>(state.global_ranks.size()),
                         .timeout = state.timeout,
                         .connect_limit = limit,
                         .device = state.device,
                         .group_name = state.name,
                         .global_ranks = state.global_ranks,
                         .master_addr = state.job->place.master_addr,
                         .several_nodes = state.job->place.world_size > state.job->place.local_size};
  try {
    state.connection = std::make_unique<GroupConnection>(
        nccl ? GroupConnection::Kind::nccl : GroupConnection::Kind::gloo, GroupMembers{state.name, state.global_ranks},
        [&] { return nccl ? make_nccl_backend(plan) : make_gloo_backend(plan); });
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {  // gloo's and NCCL's exceptions are no c10::Error
    const auto* c10_error = dynamic_cast<const c10::Error*>(&error);
    throw Error{fmt::format("process group {}: rank {} cannot connect to the others: {}", state.name, state.rank,
                            c10_error ? c10_error->what_without_backtrace() : error.what())};
  }
}

void join_job(ProcessGroup::State& state, const ProcessGroupOptions& options, const JoinTerms& terms) {
  groups_begin();
  MeetingPlan plan;
  read_init_method(options, plan);
  plan.kept = terms.kept;
  plan.check = terms.check;
  const DeviceWish wish = wish_of(options, terms.device);
  const DeviceChoice choice = choose_device(wish, plan.place, visible_gpus());
  plan.asked_backend = options.backend;
  plan.offer = {.nccl = choice.offers_nccl, .gloo = choice.offers_gloo, .gpu = ""};
  if (choice.offers_nccl) {
    const torch::Device gpu{torch::kCUDA, static_cast<c10::DeviceIndex>(*choice.gpu)};
    bind_gpu(gpu);
    plan.offer.gpu = gpu_identity(gpu);
  }
  plan.timeout = options.timeout.value_or(choice.offers_nccl ? nccl_timeout : gloo_timeout);
  plan.on_waiting = options.on_waiting ? options.on_waiting : [](std::string_view line) {
    std::fprintf(stderr, "torchup: %.*s\n", static_cast<int>(line.size()), line.data());
  };

  Meeting meeting = meet(plan);
  state.job = std::make_shared<const JobState>(
      JobState{.place = plan.place,
               // Python's ranks know no name of the round.
               .default_store = c10::make_intrusive<c10d::PrefixStore>(
                   meeting.all_native ? "torchup/" + meeting.round : "default_pg", meeting.store),
               .hosts_store = meeting.hosts_store,
               .all_native = meeting.all_native,
               .some_kept = meeting.some_kept});
  state.rank = plan.place.rank;
  state.backend_name = meeting.backend;
  state.device = device_of(wish, choice, meeting.backend);
  if (state.device.is_cuda()) bind_gpu(state.device);
  state.timeout = options.timeout.value_or(meeting.backend == "nccl" ? nccl_timeout : gloo_timeout);
  state.global_ranks.clear();
  for (int rank = 0; rank < plan.place.world_size; ++rank) state.global_ranks.push_back(rank);
  open_stores(state, state.job->default_store);
  connect_group(state, terms.connect_limit);
  set_job_store(meeting.store, meeting.round);
  state.ended = false;
}

ProcessGroup init_process_group(const ProcessGroupOptions& options) {
  c10::initLogging();                    // else TORCH_CPP_LOG_LEVEL is not obeyed
  c10d::setDebugLevelFromEnvironment();  // else TORCH_DISTRIBUTED_DEBUG is not

  auto state = std::make_shared<ProcessGroup::State>();
  join_job(*state, options, {});
  state->joined_by = options;
  if (state->job->some_kept) state->run = RunPhase::others;
  return ProcessGroup{std::move(state)};
}

}  // namespace torchup
