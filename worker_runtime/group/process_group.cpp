#include "torchup/process_group.hpp"

#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/debug.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "torchup/error.hpp"
#include "worker_runtime/group/backend_factory.hpp"
#include "worker_runtime/group/group_state.hpp"
#include "worker_runtime/group/meeting.hpp"
#include "worker_runtime/place/device_choice.hpp"
#include "worker_runtime/place/worker_place.hpp"
#include "worker_runtime/store/job_store.hpp"

namespace torchup {
namespace {

using namespace std::chrono_literals;

constexpr auto gloo_timeout = 30min;  // Python's
constexpr auto nccl_timeout = 10min;  // Python's
constexpr auto farewell_limit = 10s;  // how long the store's host waits for the others to be done

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

DeviceWish wish_of(const ProcessGroupOptions& options) {
  DeviceWish wish{.backend = options.backend};
  if (!options.device) return wish;
  if (options.device->is_cuda()) {
    wish.kind = DeviceWish::Kind::gpu;
    if (options.device->has_index()) wish.index = options.device->index();
  } else if (options.device->is_cpu()) {
    wish.kind = DeviceWish::Kind::cpu;
  } else {
    throw Error{fmt::format("device {}: process groups work on cpu and cuda", options.device->str())};
  }
  return wish;
}

/// Where collectives' tensors live: on the GPU that was asked for, or that the backend needs.
torch::Device device_of(const DeviceWish& wish, const DeviceChoice& choice, const std::string& backend) {
  const bool on_gpu = wish.kind == DeviceWish::Kind::gpu || backend == "nccl";
  return on_gpu ? torch::Device{torch::kCUDA, static_cast<c10::DeviceIndex>(*choice.gpu)} : torch::Device{torch::kCPU};
}

void make_backend(ProcessGroup::State& state) {
  const bool nccl = state.backend_name == "nccl";
  BackendPlan plan{.store = c10::make_intrusive<c10d::PrefixStore>(nccl ? "cuda/" : "cpu/", state.group_store),
                   .rank = state.rank,
                   .size = static_cast<int>(state.global_ranks.size()),
                   .timeout = state.timeout,
                   .device = state.device,
                   .group_name = state.name,
                   .global_ranks = state.global_ranks,
                   .master_addr = state.job->place.master_addr,
                   .several_nodes = state.job->place.world_size > state.job->place.local_size};
  try {
    if (nccl) {
      state.backend = make_nccl_backend(plan);
      return;
    }
    state.gloo_sockets.emplace();
    state.backend = make_gloo_backend(plan);
    state.gloo_sockets->made();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {  // gloo's and NCCL's exceptions are no c10::Error
    const auto* c10_error = dynamic_cast<const c10::Error*>(&error);
    throw Error{fmt::format("process group {}: rank {} cannot connect to the others: {}", state.name, state.rank,
                            c10_error ? c10_error->what_without_backtrace() : error.what())};
  }
}

/// The end of a good run.
void end(ProcessGroup::State& state) {
  state.ended = true;
  if (state.name == "0") set_job_store(nullptr);
  state.backend->shutdown();
  state.backend.reset();
  if (state.name != "0" || !state.job->all_native || state.global_ranks.size() == 1) return;
  // The process that serves the store stays until the others have said that they need it no more.
  try {
    auto& store = *state.user_store;
    if (store.add("farewell", 1) == static_cast<std::int64_t>(state.global_ranks.size()))
      publish(store, "all_gone", "1");
    if (!state.job->hosts_store) return;
    store.wait({"all_gone"}, std::min<std::chrono::milliseconds>(farewell_limit, state.timeout));
  } catch (const std::exception&) {
    // Somebody died or never ends its group; the launcher will say who. Or we came late, and who serves the store has
    // gone: a farewell that nobody hears is none the worse.
  }
}

}  // namespace

std::shared_ptr<ProcessGroup::State> ProcessGroup::State::child() const {
  auto child = std::make_shared<State>();
  child->job = job;
  child->backend_name = backend_name;
  child->device = device;
  child->timeout = timeout;
  return child;
}

ProcessGroup::State::~State() {
  if (!backend) return;
  if (ended) {
    // Aborted. What cannot be ended from outside would wait for its peers: it is left to the end of the process.
    if (!gloo_sockets || !gloo_sockets->found()) (void)backend.release();
    return;
  }
  // While an exception passes, peers may be gone or wait for us: the backend's destructor could wait for them in turn.
  if (std::uncaught_exceptions() > 0) {
    (void)backend.release();
    return;
  }
  try {
    end(*this);  // NCCL's must not be left to its destructor
  } catch (const std::exception& error) {
    std::fprintf(stderr, "torchup: process group %s ended badly: %s\n", name.c_str(), error.what());
    (void)backend.release();
  }
}

int ProcessGroup::rank() const { return state_->rank; }
int ProcessGroup::size() const { return static_cast<int>(state_->global_ranks.size()); }
int ProcessGroup::local_rank() const { return state_->job->place.local_rank; }
int ProcessGroup::local_size() const { return state_->job->place.local_size; }
torch::Device ProcessGroup::device() const { return state_->device; }
const std::string& ProcessGroup::backend() const { return state_->backend_name; }
const std::string& ProcessGroup::name() const { return state_->name; }
std::chrono::milliseconds ProcessGroup::timeout() const { return state_->timeout; }
const std::vector<int>& ProcessGroup::global_ranks() const { return state_->global_ranks; }
c10::intrusive_ptr<c10d::Store> ProcessGroup::store() const { return state_->user_store; }
std::string ProcessGroup::fresh_key(const std::string& purpose) const {
  return purpose + "/" + std::to_string(state_->keys_used[purpose]++);
}
bool ProcessGroup::has_python_ranks() const { return !state_->job->all_native; }
c10d::Backend& ProcessGroup::c10d_backend() const {
  if (state_->ended) throw Error{"process group " + state_->name + " was shut down or aborted"};
  return *state_->backend;
}

std::optional<ProcessGroup> ProcessGroup::new_group(std::span<const int> ranks) const {
  std::vector<int> members{ranks.begin(), ranks.end()};
  std::sort(members.begin(), members.end());
  if (members.empty()) throw Error{"new_group: no ranks"};
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (members[i] < 0 || members[i] >= size())
      throw Error{fmt::format("new_group: rank {} is not in this group of {}", members[i], size())};
    if (i && members[i] == members[i - 1]) throw Error{fmt::format("new_group: rank {} is there twice", members[i])};
  }
  const std::string number = std::to_string(++state_->children);  // counted on every rank, members or not
  const auto self = std::find(members.begin(), members.end(), rank());
  if (self == members.end()) return std::nullopt;

  auto child = state_->child();
  child->rank = static_cast<int>(self - members.begin());
  for (const int member : members)
    child->global_ranks.push_back(state_->global_ranks[static_cast<std::size_t>(member)]);
  // Children of the job's group are named as Python names them; deeper ones carry their parent's name, since two
  // parents may have as many children.
  child->name = state_->name == "0" ? number : state_->name + "." + number;
  open_stores(*child, state_->group_store);  // within the parent's, as Python's
  make_backend(*child);
  return ProcessGroup{std::move(child)};
}

void ProcessGroup::shutdown() {
  if (!state_->ended) end(*state_);
}

void ProcessGroup::abort() {
  if (state_->ended.exchange(true)) return;
  if (state_->name == "0") set_job_store(nullptr);
  state_->backend->abort();  // gloo's does nothing
  if (state_->gloo_sockets) state_->gloo_sockets->shut_down();
}

void open_stores(ProcessGroup::State& state, const c10::intrusive_ptr<c10d::Store>& parent) {
  state.group_store = c10::make_intrusive<c10d::PrefixStore>(state.name + "/", parent);
  state.user_store = c10::make_intrusive<c10d::PrefixStore>("torchup/user", state.group_store);
}

ProcessGroup init_process_group(const ProcessGroupOptions& options) {
  c10::initLogging();                    // else TORCH_CPP_LOG_LEVEL is not obeyed
  c10d::setDebugLevelFromEnvironment();  // else TORCH_DISTRIBUTED_DEBUG is not

  auto state = std::make_shared<ProcessGroup::State>();
  MeetingPlan plan;
  read_init_method(options, plan);
  const DeviceWish wish = wish_of(options);
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
  state->job = std::make_shared<const JobState>(
      JobState{.place = plan.place,
               .default_store = c10::make_intrusive<c10d::PrefixStore>("default_pg", meeting.store),
               .hosts_store = meeting.hosts_store,
               .all_native = meeting.all_native});
  state->rank = plan.place.rank;
  state->backend_name = meeting.backend;
  state->device = device_of(wish, choice, meeting.backend);
  if (state->device.is_cuda()) bind_gpu(state->device);
  state->timeout = options.timeout.value_or(meeting.backend == "nccl" ? nccl_timeout : gloo_timeout);
  for (int rank = 0; rank < plan.place.world_size; ++rank) state->global_ranks.push_back(rank);
  open_stores(*state, state->job->default_store);
  make_backend(*state);
  set_job_store(meeting.store);
  return ProcessGroup{std::move(state)};
}

}  // namespace torchup
