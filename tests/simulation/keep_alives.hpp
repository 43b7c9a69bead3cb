#pragma once

namespace torchup::simulation {

/// `agents` keep alive once a second for so many simulated minutes; each minute 1 % of them leave and return. Returns
/// 0; ends the process with 1 when a promise does not hold.
int run_keep_alives(int agents, int minutes);

/// Of this process so far.
double cpu_seconds();

}  // namespace torchup::simulation
