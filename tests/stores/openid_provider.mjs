// An OpenID provider for tests: oidc-provider with its development pages, where any name
// signs in with any password. Arguments: port, redirect URI of the console.
//
// POST /faults with JSON sets what is wrong with the ID tokens from then on; {} nothing:
//   claims: replaced in the token; null removes one
//   signer: "none", "stranger" (another key with the same kid), "embedded" (another key,
//     which the header contains), "secret" (HMAC with the public key as its secret)
// POST /keys makes the provider sign with a new key, of another kid.
import { createPublicKey, createHmac } from 'node:crypto';
import { createServer } from 'node:http';
import * as jose from 'jose';
import { Provider } from 'oidc-provider';

const [port, redirect] = process.argv.slice(2);
const issuer = `http://localhost:${port}`; // another site than the console at 127.0.0.1
const ROLES = { chief: ['landslide-chief', 'staff'], viewer: ['staff'], stranger: ['not-landslide-chief'] };
let faults = {};

const newKey = async (kid) => ({ ...(await jose.exportJWK((await jose.generateKeyPair('RS256', { extractable: true })).privateKey)), kid, use: 'sig', alg: 'RS256' });
const stranger = await newKey('key-1');
const publicPart = ({ kty, n, e, kid, use, alg }) => ({ kty, n, e, kid, use, alg });

// A user chooses the nickname; name and roles are the administrator's.
const account = (_, sub) => ({
  accountId: sub,
  claims: () => ({ sub, preferred_username: sub === 'thief' ? 'a-chief' : sub, nickname: 'landslide-chief', roles: ROLES[sub] ?? [] }),
});

function makeProvider(key) {
  const provider = new Provider(issuer, {
    clients: [
      { client_id: 'console', client_secret: 'a secret: of tests & more', redirect_uris: [redirect] },
      { client_id: 'other', client_secret: 'another', redirect_uris: [redirect] },
    ],
    jwks: { keys: [key] },
    findAccount: account,
    claims: { openid: ['sub', 'preferred_username', 'nickname', 'roles'] },
    conformIdTokenClaims: false,
    pkce: { required: () => true },
    cookies: { keys: ['of tests'] },
    features: { devInteractions: { enabled: true } },
  });
  provider.use(async (ctx, next) => {
    await next();
    if (ctx.path === '/token' && ctx.body?.id_token) ctx.body.id_token = await damaged(ctx.body.id_token, key);
  });
  return provider;
}

async function damaged(token, key) {
  if (!faults.claims && !faults.signer) return token;
  const claims = { ...jose.decodeJwt(token), ...faults.claims };
  for (const name of Object.keys(claims)) if (claims[name] === null) delete claims[name];
  const encode = (value) => Buffer.from(JSON.stringify(value)).toString('base64url');
  if (faults.signer === 'none') return `${encode({ alg: 'none' })}.${encode(claims)}.`;
  if (faults.signer === 'secret') {
    const head = `${encode({ alg: 'HS256', kid: key.kid })}.${encode(claims)}`;
    const secret = createPublicKey({ key: publicPart(key), format: 'jwk' }).export({ type: 'spki', format: 'pem' });
    return `${head}.${createHmac('sha256', secret).update(head).digest('base64url')}`;
  }
  const header = { alg: 'RS256', kid: key.kid };
  if (faults.signer === 'embedded') header.jwk = { kty: 'RSA', n: stranger.n, e: stranger.e };
  const signer = faults.signer ? stranger : key;
  return new jose.SignJWT(claims).setProtectedHeader(header).sign(await jose.importJWK(signer, 'RS256'));
}

let serve = makeProvider(await newKey('key-1')).callback();
createServer(async (request, response) => {
  if (request.method !== 'POST' || !['/faults', '/keys'].includes(request.url)) return serve(request, response);
  let body = '';
  for await (const part of request) body += part;
  if (request.url === '/faults') faults = JSON.parse(body);
  else serve = makeProvider(await newKey('key-2')).callback();
  return response.end();
}).listen(Number(port), '127.0.0.1');
