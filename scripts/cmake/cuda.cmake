# The CUDA module lives in runtime/cuda/ and is opened at run time, so nothing else here links
# CUDA. This file finds the toolkit, enables the language and says what it decided.
# Sets MF_HAVE_CUDA for the tests.
set(MF_HAVE_CUDA OFF)
set(cuda_folder ${CMAKE_SOURCE_DIR}/runtime/cuda)

if(MF_CUDA STREQUAL "OFF")
  message(STATUS "CUDA device module: off (MF_CUDA=OFF)")
  return()
endif()
if(NOT EXISTS ${cuda_folder}/CMakeLists.txt)
  if(MF_CUDA STREQUAL "ON")
    message(FATAL_ERROR "MF_CUDA=ON, but this source tree has no runtime/cuda; "
      "configure with -DMF_CUDA=OFF to build for the host device only")
  endif()
  message(STATUS "CUDA device module: off (no runtime/cuda in this source tree)")
  return()
endif()

# check_language(CUDA) looks only at PATH and CUDACXX.
find_program(MF_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda /opt/cuda
  PATH_SUFFIXES bin)
if(NOT MF_NVCC AND NOT CMAKE_CUDA_COMPILER)
  if(MF_CUDA STREQUAL "ON")
    message(FATAL_ERROR "MF_CUDA=ON, but nvcc was found neither in PATH nor under CUDA_HOME, "
      "CUDA_PATH, /usr/local/cuda or /opt/cuda; set CUDA_HOME to the toolkit's folder")
  endif()
  message(STATUS "CUDA device module: off (no nvcc)")
  return()
endif()
if(NOT CMAKE_CUDA_COMPILER)
  set(CMAKE_CUDA_COMPILER ${MF_NVCC})
endif()
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80-real 90) # A100 to H200; later ones from the 90 PTX
endif()
enable_language(CUDA)
# Derived from the compiler, so toolkits with lib/ instead of lib64/ are found too. CMake leaves
# these folders out of RPATH: users of it set BUILD_RPATH to CUDAToolkit_LIBRARY_DIR by hand.
find_package(CUDAToolkit REQUIRED)
# The records of CUPTI that the module reads, and the call that names who holds it, are of 13.
if(CUDAToolkit_VERSION VERSION_LESS 13)
  if(MF_CUDA STREQUAL "ON")
    message(FATAL_ERROR "MF_CUDA=ON, but the CUDA toolkit is ${CUDAToolkit_VERSION}: 13.0 or newer "
      "is needed; set CUDA_HOME to such a toolkit's folder")
  endif()
  message(STATUS "CUDA device module: off (toolkit ${CUDAToolkit_VERSION}, 13.0 is needed)")
  return()
endif()
set(MF_HAVE_CUDA ON)
message(STATUS "CUDA device module: on (${CMAKE_CUDA_COMPILER}, toolkit ${CUDAToolkit_VERSION}, "
  "architectures ${CMAKE_CUDA_ARCHITECTURES})")
add_subdirectory(${cuda_folder})
if(TARGET memferry-cuda)
  install(TARGETS memferry-cuda LIBRARY DESTINATION lib)
endif()
