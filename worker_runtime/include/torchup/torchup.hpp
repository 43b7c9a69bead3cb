#pragma once

// Everything that a training program needs. The single headers may be included instead.
#include <torchup/collectives.hpp>
#include <torchup/comm_hook.hpp>
#include <torchup/error.hpp>
#include <torchup/process_group.hpp>
