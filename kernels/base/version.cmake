# What --version says. Included by the top CMakeLists.txt, when every module has looked for its libraries; and run as a script,
# cmake -P, in each build: a commit may have come since the last.

if(CMAKE_SCRIPT_MODE_FILE)
  cmake_minimum_required(VERSION 3.25)  # or each build warns of policies that are not set
  # SOURCE: the project's folder; OUTPUT: the header to write, which is touched only if the commit is another.
  set(commit "unknown")
  find_program(git git)
  if(git)
    function(run_git result)
      execute_process(COMMAND ${git} --no-optional-locks ${ARGN} WORKING_DIRECTORY ${SOURCE}
                      OUTPUT_VARIABLE out OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE status)
      if(NOT status EQUAL 0)
        set(out "failed")
      endif()
      set(${result} "${out}" PARENT_SCOPE)
    endfunction()
    run_git(top rev-parse --show-cdup)  # empty at the top: in a larger repository its commit would say nothing
    run_git(head rev-parse HEAD)
    run_git(changes status --porcelain --untracked-files=no)
    if(top STREQUAL "" AND head MATCHES "^[0-9a-f]+$" AND NOT changes STREQUAL "failed")
      set(commit "${head}")
      if(NOT changes STREQUAL "")
        string(APPEND commit ", with uncommitted changes")
      endif()
    endif()
  endif()
  file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "#define TESSERA_COMMIT \"@commit@\"\n" @ONLY)
  return()
endif()

# The version in a header that defines `names`, or "not built in" without its folder.
function(tessera_header_version result folder header)
  set(version "")
  if(folder AND EXISTS ${folder}/${header})
    foreach(name IN LISTS ARGN)
      file(STRINGS ${folder}/${header} line REGEX "^[ \t]*#[ \t]*define[ \t]+${name}[ \t]+[0-9]+")
      if(line MATCHES "${name}[ \t]+([0-9]+)")
        list(APPEND version ${CMAKE_MATCH_1})
      endif()
    endforeach()
    list(JOIN version "." version)
  endif()
  if(version STREQUAL "")
    set(version "not built in")
  endif()
  set(${result} "${version}" PARENT_SCOPE)
endfunction()

set(built_cuda "not built in")
if(TESSERA_WITH_CUDA)
  string(REPLACE ";" ", " archs "${TESSERA_CUDA_ARCHS}")
  set(built_cuda "${CUDAToolkit_VERSION}, for ${archs}")
endif()
set(cudnn_folder "")
get_property(with_cudnn GLOBAL PROPERTY TESSERA_WITH_CUDNN)
if(with_cudnn)
  set(cudnn_folder ${CUDNN_INCLUDE_DIR})
endif()
set(nccl_folder "")
if(TESSERA_WITH_CUDA)
  set(nccl_folder ${NCCL_INCLUDE_DIR})
endif()
tessera_header_version(built_cudnn "${cudnn_folder}" cudnn_version.h CUDNN_MAJOR CUDNN_MINOR CUDNN_PATCHLEVEL)
tessera_header_version(built_nccl "${nccl_folder}" nccl.h NCCL_MAJOR NCCL_MINOR NCCL_PATCH)
set(generated ${PROJECT_BINARY_DIR}/generated)
file(CONFIGURE OUTPUT ${generated}/tessera_build.h @ONLY CONTENT
"#define TESSERA_BUILT_VERSION \"@PROJECT_VERSION@\"
#define TESSERA_BUILT_COMPILER \"@CMAKE_CXX_COMPILER_ID@ @CMAKE_CXX_COMPILER_VERSION@\"
#define TESSERA_BUILT_TYPE \"@CMAKE_BUILD_TYPE@\"
#define TESSERA_BUILT_CPU \"@TESSERA_CPU_ARCH@\"
#define TESSERA_BUILT_CUDA \"@built_cuda@\"
#define TESSERA_BUILT_CUDNN \"@built_cudnn@\"
#define TESSERA_BUILT_NCCL \"@built_nccl@\"
")
add_custom_target(tessera_commit BYPRODUCTS ${generated}/tessera_commit.h
  COMMAND ${CMAKE_COMMAND} -DSOURCE=${PROJECT_SOURCE_DIR} -DOUTPUT=${generated}/tessera_commit.h
          -P ${CMAKE_CURRENT_LIST_FILE} VERBATIM)
add_dependencies(tessera_command_line tessera_commit)
target_include_directories(tessera_command_line PRIVATE ${generated})
