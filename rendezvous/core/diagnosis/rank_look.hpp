#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/base/types.hpp"
#include "rendezvous/core/diagnosis/rank_set.hpp"

/// What one look at a rank gives, and what verdicts and pages are made of.
///
/// Every text in it is a stranger's, as a worker or its kernel wrote it, and at most as long as named here; who prints
/// one makes it printable. Times are the node's CLOCK_MONOTONIC in nanoseconds.
namespace torchup {

inline constexpr std::size_t look_bytes_max = 2048;  ///< of one rank between agent and coordinator
inline constexpr std::size_t look_frames_max = 16;   ///< innermost first; a node's own file has them all
inline constexpr std::size_t look_native_frames_max = 16;
inline constexpr std::size_t look_groups_max = 64;
inline constexpr std::size_t look_collectives_max = 64;
inline constexpr std::size_t look_host_bytes_max = 256;
inline constexpr std::size_t look_kernel_bytes_max = 256;
inline constexpr std::size_t look_function_bytes_max = 128;
inline constexpr std::size_t look_file_bytes_max = 192;
inline constexpr std::size_t look_native_bytes_max = 192;  ///< one native frame
inline constexpr std::size_t look_group_bytes_max = 128;   ///< a group's name, or its description
inline constexpr std::size_t look_operation_bytes_max = 64;
inline constexpr std::size_t look_sizes_bytes_max = 128;
inline constexpr std::size_t look_dtype_bytes_max = 32;
inline constexpr std::size_t look_ranks_bytes_max = 512;  ///< a group's members as text

struct StackFrame {
  std::string function = {};
  std::string file = {};
  int line = 0;  ///< 0: not known
  friend bool operator==(const StackFrame&, const StackFrame&) = default;
};

/// How far a rank is in a group to which it belongs.
struct GroupPosition {
  std::string name = {};
  std::string description = {};  ///< "default_pg", as the program named it; may be empty
  RankSet ranks = {};            ///< its members; empty: not known
  std::int64_t number = -1;      ///< of the newest collective that this rank has begun; -1: none yet
  friend bool operator==(const GroupPosition&, const GroupPosition&) = default;
};

/// A collective, or a point-to-point call, that a rank has begun.
struct Collective {
  std::string group = {};  ///< its name
  std::int64_t number = 0;
  bool finished = false;          ///< finished ones are told of groups in which somebody waits, to compare with
  bool point_to_point = false;    ///< its number counts such calls alone
  std::optional<Rank> peer = {};  ///< of a point-to-point call, its rank in the whole group, where it is known
  std::string operation = {};     ///< "all_reduce", "nccl:send": as the recorder has it
  std::string sizes = {};         ///< of its input, for people: "[1024, 1024]"
  std::int64_t elements = -1;     ///< of its input; -1: not known
  std::string dtype = {};         ///< "Float", "float32"; empty: not known
  std::int64_t created_ns = 0;
  friend bool operator==(const Collective&, const Collective&) = default;
};

/// The states of a process in /proc/PID/stat that a verdict asks for.
inline constexpr char state_unknown = '?';
inline constexpr char state_stopped = 'T';
inline constexpr char state_zombie = 'Z';
inline constexpr char state_dead = 'X';  ///< also of a worker that ended with 0, whose process is gone

struct RankLook {
  Rank rank{0};
  LocalRank local_rank{0};
  std::string host = {};
  std::int64_t pid = 0;        ///< 0: not known
  bool seen = false;           ///< false: no look reached it; of what follows nothing is known then
  char state = state_unknown;  ///< 'R', 'S', 'D', 'T', 't', 'Z', 'X'
  bool traced = false;         ///< a debugger or strace holds it
  bool debugged = false;       ///< pdb, bdb, debugpy or pydevd is in its stack
  bool moving = false;         ///< it computed, read or wrote between the two looks, or its stack changed
  bool progressed = false;     ///< a step, a beat or a group's number differs between the two looks
  std::optional<std::int64_t> raised_ns = {};  ///< when its exception left the program
  bool raised_consequence = false;             ///< that exception is of another's end, by its words
  bool in_p2p = false;                         ///< its innermost frames are a recv or a send
  std::string kernel = {};                     ///< "sleeping in read of /mnt/x"
  std::vector<StackFrame> frames = {};         ///< the main thread's, innermost first
  std::vector<std::string> native = {};        ///< innermost first
  bool groups_known = false;                   ///< false: its helper did not answer; groups and collectives are empty
  bool groups_cut = false;                     ///< it has more groups than are told
  std::vector<GroupPosition> groups = {};
  std::vector<Collective> collectives = {};  ///< the unfinished ones, and finished ones as far as there is room
  std::int64_t step = 0;                     ///< the program's number of its last step; counts where beats > 0
  std::uint64_t beats = 0;                   ///< steps that it has ended
  friend bool operator==(const RankLook&, const RankLook&) = default;
};

/// Its process is over, and it leaves without having failed.
[[nodiscard]] inline bool has_ended(const RankLook& look) {
  return look.seen && (look.state == state_dead || look.state == state_zombie);
}

}  // namespace torchup
