# Toolchain: programs that run on any Linux with glibc 2.28 or newer, by zig's C++ compiler, which brings libc++ and the
# symbols of every glibc with it. scripts/release uses it, by the preset `portable`. It is told:
#
#   TORCHUP_ZIG           the program zig, of PyPI's package ziglang
#   TORCHUP_ARCHITECTURE  x86_64 or aarch64
#   TORCHUP_HEADERS       a folder with the headers of Boost, CLI11, fmt, nlohmann-json, spdlog and libsodium, and nothing
#                         else: those of this machine's C library must not be met
foreach(variable IN ITEMS TORCHUP_ZIG TORCHUP_ARCHITECTURE TORCHUP_HEADERS)
  if(NOT ${variable})
    message(FATAL_ERROR "${variable} is not set; ${CMAKE_CURRENT_LIST_FILE} says what it is")
  endif()
  list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES ${variable})
endforeach()
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR ${TORCHUP_ARCHITECTURE})
set(CMAKE_CXX_COMPILER ${TORCHUP_ZIG} c++ -target ${TORCHUP_ARCHITECTURE}-linux-gnu.2.28)

# zig's own programs of binutils know every architecture; CMake wants each as a file of one word.
foreach(tool IN ITEMS ar ranlib)
  set(torchup_zig_tool ${CMAKE_BINARY_DIR}/zig-${tool})
  if(NOT EXISTS ${torchup_zig_tool})
    file(WRITE ${torchup_zig_tool} "#!/bin/sh\nexec '${TORCHUP_ZIG}' ${tool} \"$@\"\n")
    file(CHMOD ${torchup_zig_tool} PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
  endif()
  string(TOUPPER ${tool} tool)
  set(CMAKE_${tool} ${torchup_zig_tool})
endforeach()

# The same bytes from every folder: neither names where something lay. Boost has __FILE__ in its messages.
set(CMAKE_CXX_FLAGS_INIT "-isystem ${TORCHUP_HEADERS} -g1 -ffile-prefix-map=${TORCHUP_HEADERS}=headers \
-ffile-prefix-map=${CMAKE_BINARY_DIR}=build -ffile-prefix-map=${CMAKE_SOURCE_DIR}=torchup")
set(CMAKE_EXE_LINKER_FLAGS_INIT "-pie -Wl,--build-id=sha1 -Wl,-z,noexecstack")

# Of the packages that are found here only the headers are used, which TORCHUP_HEADERS has too: TorchupBuild.cmake leaves
# out the folder in which they say that theirs are.
set(CMAKE_LIBRARY_ARCHITECTURE ${CMAKE_HOST_SYSTEM_PROCESSOR}-linux-gnu)
