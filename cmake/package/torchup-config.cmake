# find_package(torchup): the target torchup::worker_runtime, for C++ programs on LibTorch. It is compiled here, in this
# project, against the torch that is found: struct layouts differ between releases.
#
# Which torch: TORCHUP_TORCH_DIR or TORCHUP_PYTHON, else the one beside this package (pip install torchup torch), else that of
# $VIRTUAL_ENV, else python3's. TORCHUP_CUDA: AUTO, ON or OFF. Nothing else is needed but a compiler; zlib and libbacktrace are
# used where they are.
#
# Where the compiler or the torch is not fit, torchup_FOUND is false and torchup_NOT_FOUND_MESSAGE says why; find_package alone
# decides by REQUIRED and QUIET what comes of it. No variable of the caller is changed but those that begin with torchup_ and
# LibTorch_, and no target is made but those of these names. A second call makes nothing.
if(CMAKE_VERSION VERSION_LESS 3.25)
  set(torchup_FOUND FALSE)
  set(torchup_NOT_FOUND_MESSAGE "This is CMake ${CMAKE_VERSION}, and torchup needs 3.25 or newer: pip install torchup[cpp]")
  return()
endif()

block(PROPAGATE torchup_FOUND torchup_NOT_FOUND_MESSAGE LibTorch_FOUND LibTorch_VERSION LibTorch_VERSION_FULL
      LibTorch_ROOT_DIR LibTorch_PYTHON LibTorch_HAS_CUDA LibTorch_NCCL_VERSION LibTorch_NOT_FOUND_MESSAGE)
  get_filename_component(torchup_cpp "${CMAKE_CURRENT_LIST_DIR}/../../torchup/cpp" ABSOLUTE)
  get_filename_component(torchup_beside "${CMAKE_CURRENT_LIST_DIR}/../../../../torch" ABSOLUTE)
  if(NOT TORCHUP_TORCH_DIR AND NOT TORCHUP_PYTHON AND EXISTS "${torchup_beside}/version.py")
    set(TORCHUP_TORCH_DIR "${torchup_beside}")
  endif()
  set(LibTorch_GLOO_INCLUDE_DIR "${torchup_cpp}/third_party/gloo")
  list(PREPEND CMAKE_MODULE_PATH "${CMAKE_CURRENT_LIST_DIR}")
  find_package(LibTorch QUIET)
  if(NOT LibTorch_FOUND)
    set(torchup_FOUND FALSE)
    set(torchup_NOT_FOUND_MESSAGE "${LibTorch_NOT_FOUND_MESSAGE}")
  elseif(torchup_FIND_COMPONENTS)
    set(torchup_FOUND FALSE)
    set(torchup_NOT_FOUND_MESSAGE "torchup has no components, and was asked for ${torchup_FIND_COMPONENTS}.")
  elseif(NOT TARGET torchup_worker_runtime)
    include("${torchup_cpp}/sources.cmake")
    set(torchup_sources ${torchup_plain_sources} ${torchup_torchless_sources})
    foreach(torchup_group IN LISTS torchup_groups)
      list(APPEND torchup_sources ${torchup_sources_${torchup_group}})
      list(TRANSFORM torchup_sources_${torchup_group} PREPEND "${torchup_cpp}/")
      set_source_files_properties(${torchup_sources_${torchup_group}} PROPERTIES UNITY_GROUP torchup_${torchup_group})
    endforeach()
    list(TRANSFORM torchup_sources PREPEND "${torchup_cpp}/")
    set(torchup_apart ${torchup_plain_sources} ${torchup_torchless_sources})
    list(TRANSFORM torchup_apart PREPEND "${torchup_cpp}/")
    set_source_files_properties(${torchup_apart} PROPERTIES
      SKIP_UNITY_BUILD_INCLUSION ON SKIP_PRECOMPILE_HEADERS ON)

    add_library(torchup_worker_runtime STATIC EXCLUDE_FROM_ALL ${torchup_sources})
    add_library(torchup::worker_runtime ALIAS torchup_worker_runtime)
    set_target_properties(torchup_worker_runtime PROPERTIES
      UNITY_BUILD ON UNITY_BUILD_MODE GROUP POSITION_INDEPENDENT_CODE ON CXX_EXTENSIONS OFF)
    target_compile_features(torchup_worker_runtime PUBLIC cxx_std_20)
    set(torchup_torch cpu)
    if(LibTorch_HAS_CUDA)
      set(torchup_torch cuda)
    endif()
    set(torchup_made "${CMAKE_BINARY_DIR}/torchup_worker_runtime")
    set(TORCHUP_CUDA ${LibTorch_HAS_CUDA})
    configure_file("${torchup_cpp}/worker_runtime/build_config.hpp.in" "${torchup_made}/build_config.hpp" @ONLY)
    target_include_directories(torchup_worker_runtime PUBLIC "${torchup_cpp}/worker_runtime/include"
      PRIVATE "${torchup_cpp}" "${torchup_made}")
    # Before the system's: what is there may be of another age.
    target_include_directories(torchup_worker_runtime SYSTEM BEFORE PRIVATE "${torchup_cpp}/third_party/include")
    target_compile_definitions(torchup_worker_runtime PRIVATE FMT_HEADER_ONLY=1)
    target_link_libraries(torchup_worker_runtime PUBLIC LibTorch::${torchup_torch})
    target_link_options(torchup_worker_runtime INTERFACE "LINKER:--undefined=torchup_built_with_torch")
    target_precompile_headers(torchup_worker_runtime PRIVATE
      <torch/torch.h>
      <torch/csrc/autograd/function.h>
      <torch/csrc/distributed/c10d/Backend.hpp>)

    # Not by their packages, which make targets of other names.
    find_path(torchup_ZLIB_INCLUDE_DIR zlib.h)
    find_library(torchup_ZLIB_LIBRARY z)
    mark_as_advanced(torchup_ZLIB_INCLUDE_DIR torchup_ZLIB_LIBRARY)
    if(torchup_ZLIB_INCLUDE_DIR AND torchup_ZLIB_LIBRARY)
      target_link_libraries(torchup_worker_runtime PRIVATE "${torchup_ZLIB_LIBRARY}")
      target_include_directories(torchup_worker_runtime SYSTEM PRIVATE "${torchup_ZLIB_INCLUDE_DIR}")
    else()
      target_compile_definitions(torchup_worker_runtime PRIVATE TORCHUP_WITHOUT_ZLIB)
    endif()
    include(CheckIncludeFileCXX)
    set(CMAKE_REQUIRED_QUIET ON)
    check_include_file_cxx(backtrace.h torchup_HAS_BACKTRACE)
    if(torchup_HAS_BACKTRACE)
      target_link_libraries(torchup_worker_runtime PUBLIC backtrace)
    endif()
    target_link_libraries(torchup_worker_runtime PUBLIC pthread ${CMAKE_DL_LIBS})
  endif()
endblock()
