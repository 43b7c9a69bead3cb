#pragma once

#include <string>
#include <torchup/process_group.hpp>
#include <vector>

namespace torchup {

/// Texts of any length as collectives: every rank's by rank, and root's.
std::vector<std::string> all_gather_text(const std::string& text, const ProcessGroup& group);
std::string broadcast_text(const std::string& text, const ProcessGroup& group, int root);

}  // namespace torchup
