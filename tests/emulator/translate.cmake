# CUDA C++ as C++ for the emulated GPU: the three things that a header cannot explain to a compiler.
#   kernel<<<blocks, threads>>>(args)    kernel ->* emulator::Launch(blocks, threads)(args)
#   extern __shared__ T name[];          T* const name = dynamic shared memory of the block
#   #if __CUDA_ARCH__ >= 900             #if 1: CUDA's headers would take the macro for a compiler of their own

# tessera_emulate(variable): the names of CUDA sources in a list become those of their translations, and all
# CUDA headers are translated as well.
set(emulated_root ${PROJECT_BINARY_DIR}/emulated)
include_directories(${emulated_root} ${CMAKE_CURRENT_LIST_DIR}/include ${PROJECT_SOURCE_DIR})
include_directories(SYSTEM ${CUDAToolkit_INCLUDE_DIRS})
file(GLOB_RECURSE emulated_sources RELATIVE ${PROJECT_SOURCE_DIR} CONFIGURE_DEPENDS
     ${PROJECT_SOURCE_DIR}/kernels/*.cu ${PROJECT_SOURCE_DIR}/kernels/*.cuh)
string(ASCII 1 closing)  # for >>>, which a regular expression cannot tell from >
foreach(source IN LISTS emulated_sources)
  set(from ${PROJECT_SOURCE_DIR}/${source})
  if(EXISTS ${CMAKE_CURRENT_LIST_DIR}/include/${source})
    set(from ${CMAKE_CURRENT_LIST_DIR}/include/${source})
  endif()
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${from})
  file(READ ${from} text)
  string(REPLACE ">>>" "${closing}" text "${text}")
  string(REGEX REPLACE "([^a-z_])kernel<<<([^${closing}]*)${closing}" "\\1kernel ->* emulator::Launch(\\2)" text "${text}")
  string(REGEX REPLACE "([A-Za-z_][A-Za-z_0-9]*(<[^;(){}]*>)?)[ \n]*<<<([^${closing}]*)${closing}"
         "EMULATED_KERNEL(\\1) ->* emulator::Launch(\\3)" text "${text}")
  string(REPLACE "${closing}" ">>>" text "${text}")
  string(REGEX REPLACE "extern __shared__ (__align__\\([0-9]+\\) )?([a-z0-9_]+) ([a-z_]+)\\[\\]"
         "\\2* const \\3 = static_cast<\\2*>(emulator::dynamic_shared())" text "${text}")
  string(REPLACE "#if __CUDA_ARCH__ >= 900" "#if 1" text "${text}")
  set(to ${emulated_root}/${source})
  if(source MATCHES "cu$")
    string(APPEND to .cpp)
  endif()
  set(old "")
  if(EXISTS ${to})
    file(READ ${to} old)
  endif()
  if(NOT old STREQUAL text)
    file(WRITE ${to} "${text}")
  endif()
endforeach()

set(emulated_sanitizer "")
if(TESSERA_SANITIZE STREQUAL "thread")  # the kernels alone: it cannot follow OpenMP, which the host code has
  set(emulated_sanitizer "-fsanitize=thread;-g1;-DTESSERA_EMULATED_RACES")
endif()

function(tessera_emulate variable)
  set(translated "")
  foreach(source IN LISTS ${variable})
    if(source MATCHES "\\.cu$")
      cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR})
      cmake_path(RELATIVE_PATH source BASE_DIRECTORY ${PROJECT_SOURCE_DIR})
      set(source ${emulated_root}/${source}.cpp)
      set_source_files_properties(${source} PROPERTIES
        COMPILE_OPTIONS "-include;cuda_runtime.h;-w;-fno-strict-aliasing;-march=${TESSERA_CPU_ARCH};-ftls-model=local-exec;${emulated_sanitizer}")
    endif()
    list(APPEND translated ${source})
  endforeach()
  set(${variable} ${translated} PARENT_SCOPE)
endfunction()
