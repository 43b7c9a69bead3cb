# How every target of this project is compiled: standard, warnings, sanitizers, output folder, compiler cache.

if(PROJECT_IS_TOP_LEVEL)
  set(CMAKE_CXX_STANDARD 20)
  set(CMAKE_CXX_STANDARD_REQUIRED ON)
  set(CMAKE_CXX_EXTENSIONS OFF)
  set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
  add_compile_options(-fPIC)  # for programs too, so that they share precompiled headers with libraries
  if(NOT CMAKE_BUILD_TYPE)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
  endif()

  find_program(CCACHE_PROGRAM ccache)
  if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
    # The sloppiness lets ccache serve files that use the precompiled LibTorch header; the base folder and
    # nohash_dir let two checkouts share their results; depend mode spares a preprocessor's run for what is new.
    set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
        CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
        CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=true CCACHE_DEPEND=true ${CCACHE_PROGRAM})
  endif()
endif()

if(TORCHUP_HEADERS)
  list(APPEND CMAKE_CXX_IMPLICIT_INCLUDE_DIRECTORIES /usr/include)  # so it is not named; portable.cmake says why
endif()

# What is shipped is hardened, every file of it: strangers' bytes come in by the store, HTTP, frames and files of weights.
# Not what is for debugging, where sanitizers see more.
if(PROJECT_IS_TOP_LEVEL)
  add_compile_options($<$<CONFIG:Release>:-fstack-protector-strong> $<$<CONFIG:Release>:-D_FORTIFY_SOURCE=2>)
endif()

# Linked PRIVATE by every target; never exported. Files that are compiled together see names of each other, which they may
# use again.
add_library(torchup_warnings INTERFACE)
target_compile_options(torchup_warnings INTERFACE
  -Wall -Wextra -Wpedantic -Wconversion -Wold-style-cast
  $<$<NOT:$<BOOL:${CMAKE_UNITY_BUILD}>>:-Wshadow>
  $<$<BOOL:${TORCHUP_WARNINGS_AS_ERRORS}>:-Werror>)

if(TORCHUP_SANITIZE)
  add_compile_options(-fsanitize=${TORCHUP_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${TORCHUP_SANITIZE})
  if(TORCHUP_SANITIZE MATCHES undefined)
    # This check opens a pipe for each new type it meets, and reports a fault where all descriptors are used up.
    add_compile_options(-fno-sanitize=vptr)
    # clang 14 gives up on coroutines with it: "Cannot represent a difference across sections".
    add_compile_options($<$<CXX_COMPILER_ID:Clang>:-fno-sanitize=function>)
  endif()
  if(TORCHUP_SANITIZE MATCHES thread)
    # Boost.Asio's handlers end with a fence, which ThreadSanitizer does not see; what it orders, a mutex orders too.
    add_compile_options($<$<CXX_COMPILER_ID:GNU>:-Wno-tsan>)
  endif()
endif()

# fmt for every target without LibTorch, which has one of its own: its shared library would cost each start of the launcher
# half a millisecond, its headers alone each file 2.5 s of compilation, so what they leave over is compiled here. Another
# version leaves other things over.
find_package(fmt 9 REQUIRED)
if(fmt_VERSION VERSION_LESS 10)
  add_library(torchup_fmt STATIC ${CMAKE_CURRENT_LIST_DIR}/compiled_fmt.cpp)
  target_compile_features(torchup_fmt PUBLIC cxx_std_20)
  target_include_directories(torchup_fmt SYSTEM PUBLIC $<TARGET_PROPERTY:fmt::fmt-header-only,INTERFACE_INCLUDE_DIRECTORIES>)
else()
  add_library(torchup_fmt INTERFACE)
  target_link_libraries(torchup_fmt INTERFACE fmt::fmt-header-only)
endif()

# torchup_embed(<sources> <variable> <file>)
# Appends to the list <sources> a C++ file in which the file's text is `const std::string_view <variable>`.
function(torchup_embed sources name file)
  set(script ${PROJECT_SOURCE_DIR}/cmake/EmbedText.cmake)
  set(made ${CMAKE_CURRENT_BINARY_DIR}/${name}.cpp)
  add_custom_command(OUTPUT ${made}
    COMMAND ${CMAKE_COMMAND} -DINPUT=${CMAKE_CURRENT_SOURCE_DIR}/${file} -DOUTPUT=${made} -DNAME=${name} -P ${script}
    DEPENDS ${file} ${script} VERBATIM)
  set(${sources} ${${sources}} ${made} PARENT_SCOPE)
endfunction()

# torchup_library(<name> [sources...]): a static library with the alias torchup::<name>, seen from the project's root.
function(torchup_library name)
  add_library(${name} STATIC ${ARGN})
  add_library(torchup::${name} ALIAS ${name})
  target_compile_features(${name} PUBLIC cxx_std_20)
  target_include_directories(${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>)
  target_link_libraries(${name} PRIVATE $<BUILD_INTERFACE:torchup_warnings>)
  target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-ffunction-sections> $<$<CONFIG:Release>:-fdata-sections>)  # programs are linked with --gc-sections
  target_precompile_headers(${name} PRIVATE ${PROJECT_SOURCE_DIR}/cmake/precompiled.hpp)
endfunction()

# torchup_program(<name> <library> main.cpp): an executable is a library plus its main.
function(torchup_program name library main)
  add_executable(${name} ${main})
  target_link_libraries(${name} PRIVATE ${library} torchup_warnings)
  target_link_options(${name} PRIVATE -pie -Wl,-z,relro,-z,now,--gc-sections)
  if(TORCHUP_INSTALL)
    install(TARGETS ${name} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT programs)
  endif()
endfunction()

# torchup_printed(<target> <component> <file> <program> [argument...])
# What the program prints becomes <file> below the build folder, and is installed at the same place. By its path: for CMake
# a toolchain of another C library makes programs of another system, which it runs by no name.
function(torchup_printed target component file program)
  set(made ${CMAKE_BINARY_DIR}/${file})
  cmake_path(GET made PARENT_PATH folder)
  add_custom_command(OUTPUT ${made}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${folder}
    COMMAND $<TARGET_FILE:${program}> ${ARGN} > ${made}
    DEPENDS ${program} VERBATIM)
  add_custom_target(${target} ALL DEPENDS ${made})
  if(TORCHUP_INSTALL)
    cmake_path(GET file PARENT_PATH destination)
    string(REGEX REPLACE "^share" "${CMAKE_INSTALL_DATADIR}" destination ${destination})
    install(FILES ${made} DESTINATION ${destination} COMPONENT ${component})
  endif()
endfunction()

# torchup_manual(<program> <section> <library> <source>)
# man <program>: what <source> writes by that library's table of options.
function(torchup_manual program section library source)
  set(maker torchup_make_${program}_manual)
  add_executable(${maker} ${source})
  target_link_libraries(${maker} PRIVATE ${library} torchup_warnings)
  target_compile_definitions(${maker} PRIVATE TORCHUP_VERSION="${torchup_version}")
  set_target_properties(${maker} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR})
  torchup_printed(${program}_manual man share/man/man${section}/${program}.${section} ${maker})
endfunction()

# torchup_completions(<program>): what shells load of it.
function(torchup_completions program)
  torchup_printed(${program}_bash_completion completions share/bash-completion/completions/${program}
    ${program} --print-completion bash)
  torchup_printed(${program}_zsh_completion completions share/zsh/site-functions/_${program}
    ${program} --print-completion zsh)
  torchup_printed(${program}_fish_completion completions share/fish/vendor_completions.d/${program}.fish
    ${program} --print-completion fish)
endfunction()
