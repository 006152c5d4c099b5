# SY_CUDA decides whether the CUDA backend is built: a plugin of its own, so that no program needs the toolkit, the
# driver or a GPU to start. Sets sy_have_cuda.
set(SY_CUDA AUTO CACHE STRING "The CUDA backend: AUTO (where there is a toolkit), ON (or fail) or OFF")
set_property(CACHE SY_CUDA PROPERTY STRINGS AUTO ON OFF)
set(sy_cuda_version_min 12.4)

set(sy_have_cuda OFF)
set(why "SY_CUDA=OFF")
if(NOT SY_CUDA MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR "SY_CUDA=${SY_CUDA}: AUTO, ON or OFF")
endif()
if(NOT SY_CUDA STREQUAL "OFF")
    # Before the compiler is looked for, which would choose one old architecture. 90a code runs on 9.0 only; what comes
    # later is compiled from 90-virtual by its driver.
    set(CMAKE_CUDA_ARCHITECTURES "80-real;90a-real;100-real;90-virtual" CACHE STRING "GPUs that kernels are compiled for")
    include(CheckLanguage)
    check_language(CUDA) # on PATH or $CUDACXX; does not fail
    if(CMAKE_CUDA_COMPILER)
        find_package(CUDAToolkit QUIET)
    endif()
    if(NOT CMAKE_CUDA_COMPILER)
        set(why "no nvcc that works on PATH or in $CUDACXX")
    elseif(NOT CUDAToolkit_FOUND OR NOT TARGET CUDA::cudart_static)
        set(why "${CMAKE_CUDA_COMPILER} has no headers or no libcudart_static.a beside it")
    elseif(CUDAToolkit_VERSION VERSION_LESS sy_cuda_version_min)
        set(why "toolkit ${CUDAToolkit_VERSION} is older than ${sy_cuda_version_min}")
    else()
        enable_language(CUDA)
        set(sy_have_cuda ON)
        set(why "toolkit ${CUDAToolkit_VERSION}, architectures ${CMAKE_CUDA_ARCHITECTURES}")
    endif()
    if(SY_CUDA STREQUAL "ON" AND NOT sy_have_cuda)
        message(FATAL_ERROR "SY_CUDA=ON, but there is no CUDA toolkit to build with: ${why}. Install one of "
                            "${sy_cuda_version_min} or newer and set CUDACXX to its nvcc, or configure with -DSY_CUDA=OFF")
    endif()
endif()
message(STATUS "CUDA backend: ${sy_have_cuda} (${why})")
