#include "worker_runtime/group/outcome_board.hpp"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <random>
#include <torchup/error.hpp>

#include "worker_runtime/group/gather_text.hpp"
#include "worker_runtime/store/job_store.hpp"

namespace torchup {
namespace {

constexpr std::chrono::hours outcome_limit{24};  // longer than any disk takes; who dies meanwhile ends the job
constexpr char went_well = '+', went_wrong = '-';

const char* words_of(const std::exception& error) {
  const auto* const c10_error = dynamic_cast<const c10::Error*>(&error);
  return c10_error ? c10_error->what_without_backtrace() : error.what();
}

}  // namespace

OutcomeBoard::OutcomeBoard(const ProcessGroup& group, const std::string& purpose) {
  if (group.size() == 1) return;
  // A store may outlive the job's processes and hold what they published before they were started again.
  std::random_device chance;
  const std::string unused = fmt::format("{:08x}{:08x}", chance(), chance());
  prefix_ = fmt::format("torchup/outcome/{}/{}", purpose, broadcast_text(unused, group, 0));
  store_ = connect_job_store();
  if (!store_) throw Error{purpose + ": the job's process group was shut down"};
}

std::string OutcomeBoard::key(std::int64_t number) const { return fmt::format("{}/{}", prefix_, number); }

void OutcomeBoard::publish(std::int64_t number, const std::string& failure) noexcept {
  if (!store_) return;
  try {
    torchup::publish(*store_, key(number), (failure.empty() ? went_well : went_wrong) + failure);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "torchup: the other ranks cannot be told how it went: %s\n", words_of(error));
  }
}

std::string OutcomeBoard::wait_for(std::int64_t number) {
  if (!store_) return "";
  try {
    store_->wait({key(number)}, outcome_limit);
    return store_->get_to_str(key(number)).substr(1);
  } catch (const std::exception& error) {
    throw Error{fmt::format("the store was lost while waiting for another rank: {}", words_of(error))};
  }
}

}  // namespace torchup
