# Finds LibTorch inside a PyTorch wheel (PyPI's torch package) without find_package(Torch), which demands a whole CUDA
# toolkit even of CPU programs.
#
# Where it looks, first hit wins:
#   TORCHUP_TORCH_DIR   the torch package's folder (…/site-packages/torch)
#   TORCHUP_PYTHON      a Python that has torch
#   .venv/bin/python    in the source folder; scripts/setup makes it
#   $VIRTUAL_ENV        the environment that is activated
#   python3             on PATH
#
# Result:
#   LibTorch::cpu       headers, libtorch_cpu, libc10; gloo's headers (package libgloo-dev; its code is in libtorch_cpu)
#   LibTorch::cuda      the above with libtorch_cuda, the CUDA headers and nccl.h of the wheel's own packages;
#                       only when the wheel is a CUDA wheel and TORCHUP_CUDA allows it
#   LibTorch_VERSION    2.15.0, without the local part      LibTorch_VERSION_FULL  2.15.0+cu132
#   LibTorch_ROOT_DIR   the torch package's folder          LibTorch_HAS_CUDA      ON or OFF
#   LibTorch_PYTHON     the Python that this torch belongs to
#   LibTorch_NCCL_VERSION  2.30.7 when LibTorch_HAS_CUDA
#
# Without it LibTorch_FOUND is false and LibTorch_NOT_FOUND_MESSAGE says why and what can be done; find_package alone
# decides by REQUIRED and QUIET what comes of it. No variable of the caller is changed but those that begin with LibTorch_.
#
# The package is only read, never imported: importing torch costs seconds.

block(PROPAGATE LibTorch_FOUND LibTorch_VERSION LibTorch_VERSION_FULL LibTorch_ROOT_DIR LibTorch_PYTHON LibTorch_HAS_CUDA
      LibTorch_NCCL_VERSION LibTorch_NOT_FOUND_MESSAGE)
set(LibTorch_MINIMUM 2.9)
set(LibTorch_NEWEST_TESTED 2.15)
set(LibTorch_MINIMUM_GNU 11)
set(LibTorch_MINIMUM_CLANG 15)
set(_torchup_reason "")
# The first reason is the one that is told.
macro(_torchup_unfit)
  if(NOT _torchup_reason)
    string(CONCAT _torchup_reason ${ARGN})
  endif()
endmacro()

set(_torchup_locate_torch
    "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')")
set(_torchup_searched "")
set(LibTorch_ROOT_DIR "")
if(TORCHUP_TORCH_DIR)
  set(LibTorch_ROOT_DIR ${TORCHUP_TORCH_DIR})
  set(_torchup_searched "TORCHUP_TORCH_DIR=${TORCHUP_TORCH_DIR}")
  get_filename_component(LibTorch_PYTHON "${TORCHUP_TORCH_DIR}/../../../../bin/python3" ABSOLUTE)
else()
  set(_torchup_activated "")
  if(DEFINED ENV{VIRTUAL_ENV})
    set(_torchup_activated "$ENV{VIRTUAL_ENV}/bin/python3")
  endif()
  foreach(_python IN ITEMS "${TORCHUP_PYTHON}" "${CMAKE_CURRENT_LIST_DIR}/../.venv/bin/python" "${_torchup_activated}" python3)
    if(NOT _python OR (IS_ABSOLUTE "${_python}" AND NOT EXISTS "${_python}"))
      continue()
    endif()
    execute_process(COMMAND ${_python} -I -c "${_torchup_locate_torch}" OUTPUT_VARIABLE LibTorch_ROOT_DIR
                    OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    list(APPEND _torchup_searched "${_python}")
    if(LibTorch_ROOT_DIR)
      set(LibTorch_PYTHON ${_python})
      break()
    endif()
  endforeach()
endif()

if(NOT EXISTS "${LibTorch_ROOT_DIR}/version.py" OR NOT EXISTS "${LibTorch_ROOT_DIR}/lib/libtorch_cpu.so")
  _torchup_unfit("No PyTorch found (looked at: ${_torchup_searched}). Run scripts/setup, or name a Python that has torch "
      "with -DTORCHUP_PYTHON=…, or its folder with -DTORCHUP_TORCH_DIR=…/site-packages/torch, or build without the worker "
      "runtime: -DTORCHUP_WORKER_RUNTIME=OFF")
  set(LibTorch_ROOT_DIR "")
else()
  get_filename_component(LibTorch_ROOT_DIR "${LibTorch_ROOT_DIR}" REALPATH)
  file(STRINGS "${LibTorch_ROOT_DIR}/version.py" _torchup_version_line REGEX "^__version__ = ")
  string(REGEX MATCH "'([^']+)'" _ "${_torchup_version_line}")
  set(LibTorch_VERSION_FULL "${CMAKE_MATCH_1}")
  string(REGEX MATCH "^[0-9]+\\.[0-9]+\\.[0-9]+" LibTorch_VERSION "${LibTorch_VERSION_FULL}")
  if(LibTorch_VERSION VERSION_LESS LibTorch_MINIMUM)
    _torchup_unfit("PyTorch ${LibTorch_VERSION_FULL} in ${LibTorch_ROOT_DIR} is older than ${LibTorch_MINIMUM}, the "
                        "oldest that the worker runtime builds with. Install a newer torch or name another one with "
                        "-DTORCHUP_PYTHON=…")
  endif()

  # A build folder belongs to one torch: objects compiled against another one have other struct layouts.
  if(DEFINED CACHE{LibTorch_CONFIGURED} AND NOT LibTorch_CONFIGURED STREQUAL LibTorch_VERSION_FULL)
    _torchup_unfit("This build folder was configured with PyTorch ${LibTorch_CONFIGURED}, and the one found now is "
                        "${LibTorch_VERSION_FULL} (${LibTorch_ROOT_DIR}). Start a new one: cmake --fresh --preset <name>")
  endif()
  if(NOT _torchup_reason)
    set(LibTorch_CONFIGURED "${LibTorch_VERSION_FULL}" CACHE INTERNAL "the PyTorch this build folder was configured with")
  endif()
endif()

# LibTorch's headers are C++20. Which compiler it is the caller says, who has it looked at.
foreach(_compiler IN ITEMS GNU CLANG)
  string(TOUPPER "${CMAKE_CXX_COMPILER_ID}" _torchup_compiler)
  if(_torchup_compiler STREQUAL _compiler AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS "${LibTorch_MINIMUM_${_compiler}}")
    _torchup_unfit("The compiler is ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}, and LibTorch's headers need "
                   "${LibTorch_MINIMUM_${_compiler}} or newer. Name another one with -DCMAKE_CXX_COMPILER=…")
  endif()
endforeach()

find_path(LibTorch_GLOO_INCLUDE_DIR gloo/context.h)
if(NOT LibTorch_GLOO_INCLUDE_DIR)
  _torchup_unfit("gloo's headers are missing (the wheel has its code but not its headers): apt-get install libgloo-dev")
endif()

set(LibTorch_HAS_CUDA OFF)
if(LibTorch_ROOT_DIR AND NOT TORCHUP_CUDA STREQUAL "OFF")
  if(EXISTS "${LibTorch_ROOT_DIR}/lib/libtorch_cuda.so")
    set(LibTorch_HAS_CUDA ON)
  elseif(TORCHUP_CUDA STREQUAL "ON")
    _torchup_unfit("TORCHUP_CUDA=ON, but PyTorch ${LibTorch_VERSION_FULL} in ${LibTorch_ROOT_DIR} is a CPU build. "
                        "Install a CUDA wheel or configure with -DTORCHUP_CUDA=AUTO")
  endif()
endif()

if(LibTorch_HAS_CUDA)
  # CUDA's and NCCL's headers come from the wheels that torch pins. nccl.h must be the very version of the libnccl.so.2
  # that libtorch_cuda loads: c10d's options embed ncclConfig_t, which grew in nearly every NCCL release.
  get_filename_component(_torchup_site "${LibTorch_ROOT_DIR}" DIRECTORY)
  file(GLOB _torchup_cuda_includes "${_torchup_site}/nvidia/cu[0-9]*/include" "${_torchup_site}/nvidia/cu*/include"
       "${_torchup_site}/nvidia/*/include")
  find_path(LibTorch_CUDA_INCLUDE_DIR cuda_runtime_api.h HINTS ${_torchup_cuda_includes} /usr/local/cuda/include)
  find_path(LibTorch_NCCL_INCLUDE_DIR nccl.h PATHS "${_torchup_site}/nvidia/nccl/include" NO_DEFAULT_PATH)
  find_file(LibTorch_NCCL_LIBRARY libnccl.so.2 PATHS "${_torchup_site}/nvidia/nccl/lib" NO_DEFAULT_PATH)
  if(NOT LibTorch_CUDA_INCLUDE_DIR OR NOT LibTorch_NCCL_INCLUDE_DIR OR NOT LibTorch_NCCL_LIBRARY)
    _torchup_unfit("PyTorch ${LibTorch_VERSION_FULL} is a CUDA build, but its nvidia packages are not all beside it in "
                        "${_torchup_site}/nvidia (wanted: cuda_runtime_api.h, nccl.h, libnccl.so.2). Install torch with its "
                        "dependencies, or configure with -DTORCHUP_CUDA=OFF")
  endif()
  # cuda_runtime.h wants the compiler's headers in crt/, which the runtime's wheel leaves to the compiler's. Triton, which
  # comes with every CUDA wheel of torch, has them too. Last in the search order: all else comes from the folder above.
  find_path(LibTorch_CUDA_CRT_DIR crt/host_config.h NO_DEFAULT_PATH PATHS
    "${LibTorch_CUDA_INCLUDE_DIR}" "${_torchup_site}/triton/backends/nvidia/include" /usr/local/cuda/include)
  if(NOT LibTorch_CUDA_CRT_DIR)
    _torchup_unfit("CUDA's crt/host_config.h is neither in ${LibTorch_CUDA_INCLUDE_DIR} nor in the triton package nor in "
                        "/usr/local/cuda/include. Install torch with its dependencies, or configure with -DTORCHUP_CUDA=OFF")
  endif()
endif()
if(LibTorch_HAS_CUDA AND NOT _torchup_reason)
  foreach(_part IN ITEMS MAJOR MINOR PATCH)
    file(STRINGS "${LibTorch_NCCL_INCLUDE_DIR}/nccl.h" _torchup_line REGEX "^#define NCCL_${_part} ")
    string(REGEX MATCH "[0-9]+" _torchup_nccl_${_part} "${_torchup_line}")
  endforeach()
  set(LibTorch_NCCL_VERSION "${_torchup_nccl_MAJOR}.${_torchup_nccl_MINOR}.${_torchup_nccl_PATCH}")
  file(STRINGS "${LibTorch_NCCL_LIBRARY}" _torchup_line REGEX "^NCCL version [0-9]" LIMIT_COUNT 1)
  string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+" _torchup_nccl_library "${_torchup_line}")
  if(NOT _torchup_nccl_library STREQUAL LibTorch_NCCL_VERSION)
    _torchup_unfit("nccl.h is version ${LibTorch_NCCL_VERSION} (${LibTorch_NCCL_INCLUDE_DIR}) and libnccl.so.2 is version "
                        "${_torchup_nccl_library} (${LibTorch_NCCL_LIBRARY}). Reinstall the NCCL wheel that torch pins")
  endif()
endif()

set(LibTorch_IS_FIT FALSE)
if(NOT _torchup_reason)
  set(LibTorch_IS_FIT TRUE)
endif()
set(LibTorch_NOT_FOUND_MESSAGE "${_torchup_reason}")
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch
  REQUIRED_VARS LibTorch_ROOT_DIR LibTorch_IS_FIT
  VERSION_VAR LibTorch_VERSION
  REASON_FAILURE_MESSAGE "${_torchup_reason}")

if(LibTorch_FOUND AND NOT TARGET LibTorch::cpu)
  foreach(_name IN ITEMS c10 torch_cpu c10_cuda torch_cuda)
    if(EXISTS "${LibTorch_ROOT_DIR}/lib/lib${_name}.so")
      add_library(LibTorch::${_name} SHARED IMPORTED)
      set_target_properties(LibTorch::${_name} PROPERTIES
        IMPORTED_LOCATION "${LibTorch_ROOT_DIR}/lib/lib${_name}.so" IMPORTED_NO_SONAME ON)
    endif()
  endforeach()

  add_library(LibTorch::cpu INTERFACE IMPORTED)
  target_include_directories(LibTorch::cpu SYSTEM INTERFACE
    "${LibTorch_ROOT_DIR}/include" "${LibTorch_ROOT_DIR}/include/torch/csrc/api/include" "${LibTorch_GLOO_INCLUDE_DIR}")
  target_compile_features(LibTorch::cpu INTERFACE cxx_std_20)
  # The backend headers are empty without these; upstream sets them on its own targets.
  target_compile_definitions(LibTorch::cpu INTERFACE USE_DISTRIBUTED USE_C10D_GLOO)
  target_link_options(LibTorch::cpu INTERFACE
    "LINKER:-rpath,${LibTorch_ROOT_DIR}/lib" "LINKER:--allow-shlib-undefined" "LINKER:-z,lazy")
  target_link_libraries(LibTorch::cpu INTERFACE LibTorch::torch_cpu LibTorch::c10)

  if(LibTorch_HAS_CUDA)
    add_library(LibTorch::cuda INTERFACE IMPORTED)
    target_include_directories(LibTorch::cuda SYSTEM INTERFACE
      "${LibTorch_NCCL_INCLUDE_DIR}" "${LibTorch_CUDA_INCLUDE_DIR}" "${LibTorch_CUDA_CRT_DIR}")
    target_compile_definitions(LibTorch::cuda INTERFACE USE_C10D_NCCL)
    # Nothing of libtorch_cuda is referenced by name in a program that only uses tensors: keep it all the same.
    # libnccl is never linked: libtorch_cuda finds the wheel's by its own run path, and a second one would be the system's.
    target_link_libraries(LibTorch::cuda INTERFACE LibTorch::cpu
      "-Wl,--no-as-needed" "${LibTorch_ROOT_DIR}/lib/libtorch_cuda.so" "${LibTorch_ROOT_DIR}/lib/libc10_cuda.so" "-Wl,--as-needed")
  endif()
  string(REGEX MATCH "^[0-9]+\\.[0-9]+" _torchup_minor "${LibTorch_VERSION}")
  if(_torchup_minor VERSION_GREATER LibTorch_NEWEST_TESTED AND NOT LibTorch_FIND_QUIETLY)
    message(WARNING "PyTorch ${LibTorch_VERSION_FULL} is newer than ${LibTorch_NEWEST_TESTED}, the newest that torchup was "
                    "tested with. If it does not compile, or trains otherwise, install that one.")
  endif()
  if(NOT LibTorch_FIND_QUIETLY)
    message(STATUS "LibTorch ${LibTorch_VERSION_FULL} in ${LibTorch_ROOT_DIR}, CUDA ${LibTorch_HAS_CUDA}"
                   " ${LibTorch_NCCL_VERSION}")
  endif()
endif()
endblock()
