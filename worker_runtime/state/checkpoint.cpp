#include "torchup/checkpoint.hpp"

#include <fmt/format.h>
#include <torch/version.h>

#include <algorithm>
#include <functional>
#include <future>
#include <set>
#include <torchup/collectives.hpp>
#include <torchup/error.hpp>
#include <torchup/worker.hpp>
#include <torchup/zero_redundancy_optimizer.hpp>

#include "worker_runtime/group/gather_text.hpp"
#include "worker_runtime/group/group_rounds.hpp"
#include "worker_runtime/group/outcome_board.hpp"
#include "worker_runtime/place/worker_page.hpp"
#include "worker_runtime/state/checkpoint_exchange.hpp"
#include "worker_runtime/state/checkpoint_folder.hpp"
#include "worker_runtime/state/checkpoint_parts.hpp"
#include "worker_runtime/state/optimizer_state.hpp"
#include "worker_runtime/state/part_facts.hpp"
#include "worker_runtime/state/shared_folder.hpp"

namespace torchup {

using nlohmann::json;

struct Checkpoint::State {
  CheckpointFolder folder;
  ProcessGroup group;
  CheckpointOptions options;
  /// Of one round of the job, made when all ranks load or save first.
  struct Boards {
    OutcomeBoard loads;  ///< how reading went, told by the rank that has the checkpoint
    OutcomeBoard saves;  ///< how writing went, told by rank 0
  };
  std::optional<Boards> boards = {};
  int round = 0;
  std::int64_t loads_begun = 0;  ///< the same number on all ranks, as the next one
  std::int64_t saves_begun = 0;
  bool save_unconfirmed = false;  ///< nobody has looked yet how the last save went
  Tensors host = {};              ///< where tensors are copied to, used again by the next save
  std::future<void> writing = {};
};

namespace {

/// How the reading of a checkpoint went, where it did not go well.
constexpr const char* load_damaged = "damaged";
constexpr const char* load_unread = "unread";

json facts_of(Position at, const CheckpointParts& parts, const ProcessGroup& group) {
  json facts{{"step", at.step}, {"epoch", at.epoch}, {"world_size", group.size()}, {"torch", TORCH_VERSION}};
  if (parts.sampler) facts["sampler"] = to_facts(parts.sampler->position());
  if (parts.ddp != nullptr) facts["bucket_layout"] = to_facts(parts.ddp->bucket_layout());
  return facts;
}

/// The folder of each rank, made where it is missing.
CheckpointFolder open_folder(std::filesystem::path path, const ProcessGroup& group) {
  if (sets_up_alone(group)) return CheckpointFolder{std::move(path)};
  const OwnCollectives own{group};
  std::optional<CheckpointFolder> folder;
  gather_facts(group, [&] {
    folder.emplace(std::move(path));
    return json{};
  });
  return *std::move(folder);
}

}  // namespace

Checkpoint::Checkpoint(std::filesystem::path folder, ProcessGroup group, CheckpointOptions options)
    : state_{std::make_unique<State>(State{.folder = open_folder(std::move(folder), group),
                                           .group = group,
                                           .options = options,
                                           .round = round_of(group)})} {}

Checkpoint::~Checkpoint() {
  try {
    if (state_ && state_->writing.valid()) state_->writing.get();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "torchup: the last checkpoint was not written: %s\n", error.what());
  }
}

Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&& other) noexcept {
  std::swap(state_, other.state_);
  std::swap(parts_, other.parts_);
  return *this;
}

/// What ranks know of each other's loads and saves is of one round: in a new one they begin to count again. A save that
/// was begun in the round before may be somebody else's affair by now: that it failed is said on stderr alone.
void Checkpoint::follow_round() {
  State& s = *state_;
  if (std::exchange(s.round, round_of(s.group)) == s.round) return;
  s.boards.reset();
  s.loads_begun = s.saves_begun = 0;
  s.save_unconfirmed = false;
  try {
    if (s.writing.valid()) s.writing.get();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "torchup: a checkpoint of the round before was not written: %s\n", error.what());
  }
  // Rank 0 may be another process now; a collective comes before its first save. What other Checkpoints of ours have
  // begun is of the round before too.
  s.folder.stop_writing();
}

/// Collective, where there are none yet.
void Checkpoint::make_boards() {
  State& s = *state_;
  if (s.boards) return;
  s.boards.emplace(State::Boards{.loads{s.group, "checkpoint/loads"}, .saves{s.group, "checkpoint/saves"}});
}

void Checkpoint::wait() {
  const SavingState saving;
  follow_round();
  State& s = *state_;
  if (!std::exchange(s.save_unconfirmed, false)) return;
  if (s.writing.valid()) {  // rank 0
    try {
      return s.writing.get();
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {  // LibTorch's, the standard library's: the other ranks throw Error too
      throw Error{error.what()};
    }
  }
  const std::string failure = s.boards->saves.wait_for(s.saves_begun);
  if (!failure.empty()) throw Error{fmt::format("rank 0 could not write the checkpoint: {}", failure)};
}

void CheckpointParts::add_optimizer(CheckpointParts& all, torch::optim::Optimizer& optimizer) {
  if (auto* sharded = dynamic_cast<ZeroRedundancyOptimizerBase*>(&optimizer))
    add(all, *sharded);
  else
    all.optimizers.push_back(&optimizer);
}

Position Checkpoint::resume_parts(const CheckpointParts& parts) {
  State& s = *state_;
  wait();
  make_boards();
  // Another Checkpoint of this program may be writing here; over the board, for a disk may take long.
  const std::int64_t written = ++s.loads_begun;
  if (s.group.rank() == 0) {
    s.folder.wait_for_line();
    s.boards->loads.publish(written, "");
  } else {
    s.boards->loads.wait_for(written);
  }
  // Every candidate of every rank, newest first; of the copies of a step that of the lowest rank first.
  struct Candidate : FoundCheckpoint {
    int holder;
  };
  std::vector<Candidate> candidates;
  const std::vector<json> lists = gather_facts(s.group, [&] {
    json mine = json::array();
    for (const auto& [step, identity] : s.folder.found().whole) mine.push_back({step, identity});
    return mine;
  });
  for (std::size_t rank = 0; rank < lists.size(); ++rank) {
    for (const json& found : lists[rank]) candidates.push_back({{found[0], found[1]}, static_cast<int>(rank)});
  }
  std::ranges::stable_sort(candidates, std::greater{}, &Candidate::step);
  std::set<std::string> damaged;  // what one rank found damaged, all others that see the same files need not read
  for (const Candidate& candidate : candidates) {
    const int holder = candidate.holder;
    const bool is_mine = holder == s.group.rank();
    if (damaged.contains(candidate.identity)) {
      if (is_mine) s.folder.pass_over_damaged(candidate);
      continue;
    }
    LoadedCheckpoint loaded;
    const std::int64_t number = ++s.loads_begun;
    std::string failure;
    if (is_mine) {
      const auto pass_over = [&](const char* how, const std::exception& why) {
        std::fprintf(stderr, "torchup: rank %d passes over the checkpoint of step %lld: %s\n", holder,
                     static_cast<long long>(candidate.step), why.what());
        failure = how;
      };
      try {
        loaded = s.folder.load(candidate.step);
      } catch (const Damaged& error) {
        s.folder.pass_over_damaged(candidate);
        pass_over(load_damaged, error);
      } catch (const std::exception& error) {
        s.folder.pass_over_unread(candidate);
        pass_over(load_unread, error);
      }
      s.boards->loads.publish(number, failure);
    } else {
      failure = s.boards->loads.wait_for(number);
    }
    if (failure == load_damaged) damaged.insert(candidate.identity);  // what one cannot read another may
    if (!failure.empty()) continue;
    loaded.facts = json::parse(broadcast_text(loaded.facts.dump(), s.group, holder));
    send_tensors(loaded.model, s.group, holder);
    send_tensors(loaded.training, s.group, holder);
    restore_parts(parts, loaded, s.group);
    return {loaded.facts.at("epoch"), loaded.facts.at("step")};
  }
  if (s.options.must_resume) {
    throw Error{fmt::format("there is no checkpoint to resume from: no rank has a valid one in {}{}",
                            s.folder.path().string(),
                            candidates.empty() ? "" : fmt::format(" ({} were passed over)", candidates.size()))};
  }
  return {};
}

void Checkpoint::save_parts(Position at, const CheckpointParts& parts) {
  if (!parts.module && parts.optimizers.empty() && parts.others.empty() && !parts.sampler)
    throw Error{parts.ddp
                    ? "Checkpoint::save: the DDP wrapper alone was given, and of it a checkpoint holds only how its "
                      "buckets are laid out: give the module and the optimizers too"
                    : "Checkpoint::save: no parts were given, here or to a save or resume before: it would hold "
                      "nothing"};
  const SavingState saving;
  State& s = *state_;
  wait();
  make_boards();
  const std::int64_t number = ++s.saves_begun;
  s.save_unconfirmed = true;

  const bool writes = s.group.rank() == 0;
  const auto fail = [&](const std::exception& error) {  // is thrown by wait(), where the other ranks learn of it too
    s.boards->saves.publish(number, error.what());
    std::promise<void> failed;
    failed.set_exception(std::current_exception());
    s.writing = failed.get_future();
  };
  Gathered gathered;
  try {
    gathered = gather(parts, s.group);
  } catch (const std::exception& error) {
    if (writes) fail(error);
    s.save_unconfirmed = s.options.asynchronous;  // else this save tells the others, and not the next one
    throw;
  }
  try {
    if (writes) begin_writing(s, at, parts, gathered, number);
  } catch (const std::exception& error) {
    fail(error);
  }
  if (!s.options.asynchronous) wait();
}

int Checkpoint::wait_and_requeue() {
  wait();
  barrier(state_->group);  // rank 0 may serve the store: it does not leave before all have read how it went
  return exit_requeue;
}

/// Rank 0's part of a save: copies what training may change, and has a thread write it.
void Checkpoint::begin_writing(State& s, Position at, const CheckpointParts& parts, const Gathered& gathered,
                               std::int64_t number) {
  auto content = std::make_shared<CheckpointContent>();
  content->facts = facts_of(at, parts, s.group);
  if (parts.module) content->model = tensors_of(*parts.module);
  const ParameterNames names = parameter_names(parts.module.get());
  content->facts["optimizers"] = json::array();
  for (std::size_t i = 0; i < parts.optimizers.size(); ++i) {
    content->facts["optimizers"].push_back(
        store_optimizer(*parts.optimizers[i], names, optimizer_prefix(i), content->training));
  }
  content->facts["parts"] = parts.others.size();
  content->training.insert(content->training.end(), gathered.others.begin(), gathered.others.end());

  // The copy that training may not change any more. Memory is kept from save to save, page-locked for a GPU's tensors;
  // those copies are only begun here, and the writer waits for them.
  c10::SmallVector<torch::Device, 1> devices;
  const auto copy = [&](const char* file, NamedTensors& tensors) {
    for (auto& [name, tensor] : tensors) {
      torch::Tensor& host = s.host[std::string{file} + "/" + name];
      if (!host.defined() || host.sizes() != tensor.sizes() || host.scalar_type() != tensor.scalar_type())
        host = torch::empty(tensor.sizes(), torch::dtype(tensor.scalar_type()).pinned_memory(!tensor.is_cpu()));
      const torch::NoGradGuard no_grad;
      host.copy_(tensor.detach(), /*non_blocking=*/true);
      if (!tensor.is_cpu() && std::ranges::find(devices, tensor.device()) == devices.end())
        devices.push_back(tensor.device());
      tensor = host;
    }
  };
  copy("model", content->model);
  copy("training", content->training);
  content->training.emplace_back(rng_cpu, gathered.cpu_states);
  if (gathered.gpu_states.defined()) content->training.emplace_back(rng_gpu, gathered.gpu_states);

  std::vector<std::shared_ptr<c10::Event>> copied;
  for (const torch::Device device : devices) {
    copied.push_back(std::make_shared<c10::Event>(device.type()));
    copied.back()->record(c10::impl::VirtualGuardImpl{device.type()}.getStream(device));
  }
  auto write = [&s, content, copied, number, board = s.boards->saves, turn = s.folder.join_line()]() mutable {
    const std::unique_ptr<SaveTurn> mine = std::move(turn);
    mine->wait();
    try {
      for (const auto& event : copied) event->synchronize();
      s.folder.save(*content, s.options.keep_last);
      board.publish(number, "");
    } catch (const std::exception& error) {
      board.publish(number, error.what());
      throw;
    }
  };
  s.writing = std::async(std::launch::async, std::move(write));
}

}  // namespace torchup
