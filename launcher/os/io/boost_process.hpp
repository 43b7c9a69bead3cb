#pragma once

/// Boost.Process v2, headers only, on std::filesystem: Boost.Filesystem would be one more library to load at each
/// start. Release 1.81 needs these three to come before it then.
#define BOOST_PROCESS_USE_STD_FS
#include <boost/optional.hpp>
#include <boost/type_traits.hpp>
#include <boost/utility/string_view.hpp>
//
#include <boost/process/v2/posix/default_launcher.hpp>
#include <boost/process/v2/process.hpp>
#include <boost/process/v2/stdio.hpp>
