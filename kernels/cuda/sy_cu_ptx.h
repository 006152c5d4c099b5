/* sy_cu_ptx.h - instructions of cc 8.0 and later that CUDA has no function for, one each. The
 * emulator has the same names. All lanes of a warp take part in sy_mma_bf16 and sy_ldmatrix_x4.
 *
 * Fragments, with g = lane / 4 and t = lane % 4, two bf16 a register, the lower index low:
 *   a[0] A[g][2t..]  a[1] A[g+8][2t..]  a[2] A[g][2t+8..]  a[3] A[g+8][2t+8..]      A: 16 by 16
 *   b[0] B[2t..][g]  b[1] B[2t+8..][g]                                              B: 16 by 8
 *   c[0] C[g][2t]    c[1] C[g][2t+1]    c[2] C[g+8][2t]    c[3] C[g+8][2t+1]        C: 16 by 8 */
#ifndef SY_CU_PTX_H
#define SY_CU_PTX_H

/* c += A B, fp32. */
static __device__ __forceinline__ void sy_mma_bf16(float c[4], uint4 a, uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

/* a * b + c of both bf16 halves of a word, each rounded once; denormals count as what they are. */
static __device__ __forceinline__ uint32_t sy_fma_bf16x2(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t d;

    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

/* An f16, which fp32 holds exactly. */
static __device__ __forceinline__ float sy_widen_f16(uint16_t v)
{
    float f;

    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(v));
    return f;
}

static __device__ __forceinline__ uint32_t sy_shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* Four 8-by-8 matrices of 16-bit elements: lane l gives the address (shared, 16-byte aligned) of
 * row l % 8 of matrix l / 8, and gets elements [g][2t], [g][2t+1] of each. */
static __device__ __forceinline__ uint4 sy_ldmatrix_x4(const void *row)
{
    uint4 r;

    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
                 : "r"(sy_shared_address(row))
                 : "memory");
    return r;
}

/* Starts copying 16 bytes from global to shared memory, or zeros when !take (from is then not
 * read). They are there after a wait that covers their commit, for the thread that waited. */
static __device__ __forceinline__ void sy_cp_async(uint4 *to, const uint4 *from, bool take)
{
    const int n = take ? 16 : 0;

    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(sy_shared_address(to)),
                 "l"(from), "r"(n)
                 : "memory");
}

static __device__ __forceinline__ void sy_cp_async_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits until at most KEEP of the latest groups are on their way. */
template <int KEEP> static __device__ __forceinline__ void sy_cp_async_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(KEEP) : "memory");
}

/* Weights: read once, so they need not push activations out of L1. */
static __device__ __forceinline__ uint4 sy_load_stream(const uint4 *p)
{
    uint4 v;

    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

/* The same of weights that another warp of the block reads next. */
static __device__ __forceinline__ uint4 sy_load_stream_shared(const uint4 *p)
{
    uint4 v;

    asm volatile("ld.global.nc.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

#endif
