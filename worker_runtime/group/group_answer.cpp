#include "worker_runtime/group/group_answer.hpp"

#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <utility>
#include <vector>

#include "worker_runtime/group/backend_factory.hpp"
#include "worker_runtime/group/group_connection.hpp"
#include "worker_runtime/group/look_answer.hpp"

namespace torchup {
namespace {

std::mutex beginning_mutex;
std::function<void()>& beginning() {
  static auto& called = *new std::function<void()>;  // never destroyed: the program's end may be in another thread
  return called;
}

std::vector<std::string> recorder_texts() {
  using Kind = GroupConnection::Kind;
  const auto groups = connected_groups();
  const auto any = [&](Kind kind) { return std::ranges::count(groups, kind, &ConnectedGroup::kind) > 0; };
  std::vector<std::string> texts;
  if (any(Kind::gloo)) texts.push_back(gloo_recorder_text());
  if (any(Kind::nccl)) texts.push_back(nccl_recorder_text());
  return texts;
}

}  // namespace

std::uint64_t collectives_begun() {
  std::uint64_t sum = 0;
  for (const ConnectedGroup& group : connected_groups())
    sum += static_cast<std::uint64_t>(std::max<std::int64_t>(group.sequence, 0));
  return sum;
}

std::string group_answer(std::size_t bytes_max) {
  try {
    const std::vector<std::string> recorders = recorder_texts();
    std::vector<AnsweringGroup> groups;
    for (const ConnectedGroup& group : connected_groups()) {  // after the recorder: no call is beyond its count
      std::string description = group.members->name == "0" ? "default_pg" : "";  // Python's name for it
      groups.push_back({.name = group.members->name,
                        .description = std::move(description),
                        .global_ranks = group.members->global_ranks,
                        .since_ns = group.since_ns,
                        .sequence = group.sequence});
    }
    return look_answer(groups, recorders, bytes_max);
  } catch (const c10::Error& error) {
    return look_problem(error.what_without_backtrace());
  } catch (const std::exception& error) {
    return look_problem(error.what());
  }
}

void when_groups_begin(std::function<void()> begin) {
  const std::lock_guard lock{beginning_mutex};
  beginning() = std::move(begin);
}

void groups_begin() {
  const std::lock_guard lock{beginning_mutex};
  if (const auto begin = std::exchange(beginning(), {})) begin();
}

}  // namespace torchup
