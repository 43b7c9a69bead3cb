#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/base/result.hpp"
#include "rendezvous/core/diagnosis/rank_look.hpp"
#include "rendezvous/core/link/hang_terms.hpp"

/// Looks at ranks as bytes, between agents and the coordinator, and as the coordinator keeps them until it judges.
///
/// A part is a list of looks, each with its length in front, of the structures that agent_codec is made of: who does
/// not know a field passes over it, who misses one has its default. A look's texts stand once each in a table of its
/// own, so that 64 collectives of one group repeat no name.
namespace torchup {

inline constexpr std::size_t look_part_bytes_max = diagnosis_part_bytes_max;

/// The look with as much as look_bytes_max holds. The least useful goes first: native frames, what is finished, the
/// outer Python frames; of groups in which it is in no call descriptions, then members, then the last of them, of which
/// `groups_cut` tells. Of what is left, most looks have room for all: then go members of groups that are many
/// stretches, older calls, members, and the last groups; at the end the host and a description.
[[nodiscard]] RankLook fitted(RankLook look);

/// A look without what only pages tell: frames, native frames, the kernel's text. The verdict is the same without them:
/// the frame that shows it in torch.distributed stays.
[[nodiscard]] RankLook without_stack(RankLook look);

/// One look. It is longer than look_bytes_max where it was not fitted().
[[nodiscard]] std::string encode_look(const RankLook& look);

/// Errors: errc::limit_exceeded when it is longer than look_bytes_max, or a text or list in it too long;
/// errc::bad_frame when fields are cut off or out of their ranges.
[[nodiscard]] Result<RankLook> decode_look(std::string_view bytes);

/// All of them, each fitted, in as few parts as there must be. None: one empty part, for that is an answer too.
[[nodiscard]] std::vector<std::string> pack_looks(std::span<const RankLook> looks);

/// As many parts as pack_looks makes of so many ranks at most.
[[nodiscard]] std::size_t look_parts_max(int workers);

/// The looks of a part, not yet decoded; the views are into `part`.
/// Errors: errc::limit_exceeded when the part is longer than look_part_bytes_max or a look than look_bytes_max;
/// errc::bad_frame when a length does not fit.
[[nodiscard]] Result<std::vector<std::string_view>> split_part(std::string_view part);

/// The looks that can be decoded: what is wrong with one says nothing of the others.
/// Errors: as split_part.
[[nodiscard]] Result<std::vector<RankLook>> unpack_looks(std::string_view part);

}  // namespace torchup
