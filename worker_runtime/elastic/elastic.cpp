#include "torchup/elastic.hpp"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <cxxabi.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <typeinfo>
#include <vector>

#include "torchup/collectives.hpp"
#include "torchup/error.hpp"
#include "worker_runtime/elastic/agreement.hpp"
#include "worker_runtime/elastic/round_link.hpp"
#include "worker_runtime/elastic/state_image.hpp"
#include "worker_runtime/elastic/step_seed.hpp"
#include "worker_runtime/elastic/training_state.hpp"
#include "worker_runtime/group/group_connection.hpp"
#include "worker_runtime/group/group_rounds.hpp"
#include "worker_runtime/store/cancellation.hpp"
#include "worker_runtime/worker/worker_state.hpp"

namespace torchup {
namespace {

using TrainRound = std::function<int(Position)>;

/// Nobody has a state to go on with: processes that have trained are to be replaced, all of them at once.
class NoState : public Error {
 public:
  using Error::Error;
};

/// For the agent, which shows it to people.
std::string words_of(const std::exception& error) {
  int status = -1;
  char* const plain = abi::__cxa_demangle(typeid(error).name(), nullptr, nullptr, &status);
  const std::string type = plain != nullptr ? plain : typeid(error).name();
  std::free(plain);
  const auto* const c10_error = dynamic_cast<const c10::Error*>(&error);
  return fmt::format("{}: {}", type, c10_error ? c10_error->what_without_backtrace() : error.what());
}

void check_parts(const CheckpointParts& parts, const ElasticOptions& options) {
  if (!options.replicated && !options.load)
    throw Error{"Elastic::run: with .replicated = false it needs a .load, with which every round begins"};
  const bool shared_out = std::ranges::any_of(parts.others, &CheckpointParts::Stateful::is_collective);
  if (options.replicated && shared_out)
    throw Error{
        "Elastic::run: a part's state is shared out over the ranks (ZeroRedundancyOptimizer?): say .replicated = false "
        "and give a .load"};
}

/// What ends in a round that is over, from another thread: calls at the store, then collectives.
void end_what_blocks() {
  cancel_store_calls();
  interrupt_connections();
}

}  // namespace

/// One call of run.
class ElasticRun {
 public:
  ElasticRun(Worker::State& worker, const ProcessGroup& group, const ElasticOptions& options, CheckpointParts parts)
      : worker_{worker}, group_{group}, options_{options}, number_{++worker.elastic_runs},
        loan_{way_back() != nullptr ? worker.answerer.get() : nullptr},
        link_{way_back(), end_what_blocks, std::bind_front(&ChannelLoan::ask, &loan_)}, state_{std::move(parts),
                                                                                               link_.is_open() &&
                                                                                                   options.replicated} {
  }

  int run(const TrainRound& train) {
    // Where there is no way back nothing is caught: the stack of the throw is worth having in the last words.
    if (!link_.is_open()) return train_in_round(train);
    for (;; join_next_round()) {
      link_.stay();
      link_.enter_round();
      try {
        if (is_kept_) join_again(group_, [this] { check(); });
        is_kept_ = true;
        check();
        const int result = train_in_round(train);
        link_.leave_round();
        check();  // nothing is ended from here on: the round was whole, or it is over here
        link_.leave();
        return result;
      } catch (const Interrupted&) {
        if (!link_.is_over()) throw;
      } catch (const NoState&) {
        link_.leave();
        throw;
      } catch (const std::exception& error) {
        if (!link_.is_consequence(words_of(error))) throw;
      } catch (...) {
        if (!link_.is_consequence("an exception that is no std::exception")) throw;
      }
    }
  }

  void begin_step() {
    if (state_.on_gpu() && link_.is_open()) {
      const c10::impl::VirtualGuardImpl gpu{torch::kCUDA};
      gpu.getStream(group_.device()).synchronize();
    }
    // On the CPU a collective that failed has said so; of several optimizers' steps one that has begun is finished.
    if (state_.is_clean() || state_.on_gpu()) check();
    state_.step_begins();
  }

  void commit(Position at) {
    if (state_.is_clean() && !state_.parts().optimizers.empty())
      throw Error{"Elastic::commit: no optimizer's step was taken by Elastic::step since the last one"};
    state_.commit(at);
  }

  void check() const {
    if (link_.is_over()) throw Interrupted{link_.over()};
  }

 private:
  /// Null: there is none. In a second call neither: a newcomer could not come to where it is.
  AgentChannel* way_back() const { return number_ == 1 && can_join_again(group_) ? worker_.channel.get() : nullptr; }

  int train_in_round(const TrainRound& train) {
    enter_run(group_, number_);
    worker_.begin_round(number_);
    agree();
    std::optional<std::uint64_t> seed;
    if (options_.seed) seed = seed_within(*options_.seed, static_cast<std::uint64_t>(group_.rank()));
    state_.begin(seed);
    const int result = train(state_.position());
    meet_all(group_, "end");
    leave_run(group_);
    return result;
  }

  /// From a round that is over to the place in the next one.
  void join_next_round() {
    take_down(group_);
    link_.leave_round();
    worker_.stop.reset();
    allow_store_calls();
    state_.restore();
    const auto place = link_.park(std::max<std::int64_t>(state_.position().step, 0));
    if (!place) throw Error{"the channel to the agent has ended while this worker waited for its next place"};
    for (const auto& [name, value] : *place) ::setenv(name.c_str(), value.c_str(), 1);
    worker_.take_place();
  }

  /// With what each rank has of its own nobody can help another.
  void load_alone() {
    const bool trained = state_.commits() > 0 || !state_.is_clean() || state_.position() != Position{};
    const Position found = options_.load();
    if (trained && found == Position{})
      throw NoState{
          "Elastic::run: .load has found nothing, and this rank has trained already, other than newcomers: with "
          ".replicated = false a checkpoint is needed to go on from"};
    state_.loaded(found);
  }

  void agree() {
    if (!options_.replicated) return load_alone();
    std::vector<RankFacts> facts = all_facts();
    StateSource source = choose_source(facts);
    if (source.rank < 0) {
      const bool some_trained = std::ranges::any_of(facts, [](const RankFacts& each) { return each.commits > 0; });
      if (options_.load) {
        if (const Position found = options_.load(); found != Position{}) state_.loaded(found);
        facts = all_facts();
      }
      source = choose_source_among_ranks(facts);
      if (source.rank < 0 || (some_trained && !options_.load))
        throw NoState{
            "no rank has a whole state: all that are left were in the middle of a step, or took another rank's state; "
            "give Elastic a .load"};
    }
    if (!source.odd.empty() && source.rank == group_.rank())
      std::fprintf(stderr,
                   "torchup: rank %s had another state than rank %d after the same steps: replicas were not equal. It "
                   "goes on with this one\n",
                   fmt::format("{}", fmt::join(source.odd, ", ")).c_str(), source.rank);
    if (source.takers.empty()) return;
    exchange_state(state_, group_, source.rank, std::ranges::count(source.takers, group_.rank()) > 0);
  }

  /// Checksums are looked at where several ranks may be the source: they should be equal.
  std::vector<RankFacts> all_facts() {
    RankFacts mine{.commits = state_.commits(), .clean = state_.is_clean(), .fresh = state_.is_fresh(), .run = number_};
    std::vector<RankFacts> facts = exchange(mine);
    const std::vector<int> best = furthest(facts);
    if (best.size() > 1) {
      if (std::ranges::count(best, group_.rank()) > 0) mine.checksum = checksum(state_);
      facts = exchange(mine);
    }
    for (const RankFacts& each : facts)
      if (each.run != number_)
        throw Error{fmt::format("ranks are in different calls of Elastic::run ({} and {}): newcomers begin anew",
                                number_, each.run)};
    return facts;
  }

  std::vector<RankFacts> exchange(const RankFacts& mine) const {
    const torch::Tensor words = torch::tensor(
        {mine.commits, std::int64_t{mine.clean}, std::int64_t{mine.fresh}, mine.checksum, mine.run}, torch::kInt64);
    std::vector<RankFacts> facts;
    for (const torch::Tensor& theirs : all_gather(words.to(group_.device()), group_)) {
      const torch::Tensor word = theirs.cpu();
      const auto* const at = word.const_data_ptr<std::int64_t>();
      facts.push_back({.commits = at[0], .clean = at[1] != 0, .fresh = at[2] != 0, .checksum = at[3], .run = at[4]});
    }
    return facts;
  }

  Worker::State& worker_;
  const ProcessGroup& group_;
  const ElasticOptions& options_;
  const int number_;
  const ChannelLoan loan_;  ///< the link reads the channel
  RoundLink link_;
  TrainingState state_;
  bool is_kept_ = false;  ///< it was in a round of this call: the group is to join the next one
};

struct Elastic::Impl {
  Worker& worker;
  ProcessGroup group;
  ElasticOptions options;
  std::unique_ptr<ElasticRun> run = nullptr;
};

Elastic::Elastic(Worker& worker, ProcessGroup group, ElasticOptions options)
    : impl_{std::make_unique<Impl>(Impl{worker, std::move(group), std::move(options)})} {
  if (impl_->group.name() != "0") throw Error{"Elastic: takes the job's group, which all of its workers are in"};
}

Elastic::~Elastic() = default;

int Elastic::run_parts(const std::function<int(Position)>& train, CheckpointParts parts) {
  Worker::State& worker = WorkerAccess::state(impl_->worker);
  if (worker.is_in_elastic_run) throw Error{"Elastic::run: one at a time"};
  check_parts(parts, impl_->options);
  if (impl_->group.has_python_ranks())
    throw Error{"Elastic::run: ranks that are Python processes take no part in it; train with them without Elastic"};
  if (worker.elastic_runs == 0 && uses_before_run(impl_->group) > 0)
    throw Error{
        "Elastic::run: the program has done collectives or made groups since init_process_group. A worker that is "
        "started later, beside others that are in run already, would wait for them there: move them into the function"};
  impl_->run = std::make_unique<ElasticRun>(worker, impl_->group, impl_->options, std::move(parts));
  worker.is_in_elastic_run = true;
  struct End {
    bool& is_in_run;
    std::unique_ptr<ElasticRun>& run;
    ~End() {
      run.reset();
      is_in_run = false;
    }
  } const end{worker.is_in_elastic_run, impl_->run};
  return impl_->run->run(train);
}

void Elastic::begin_step() {
  if (impl_->run) impl_->run->begin_step();
}

StepEnd Elastic::commit(Position at) {
  if (!impl_->run) throw Error{"Elastic::commit: outside of Elastic::run"};
  impl_->run->commit(at);
  const StepEnd end = impl_->worker.end_step(at.step);
  impl_->run->check();
  return end;
}

}  // namespace torchup
